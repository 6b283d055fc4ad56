"""torch.distributed's calls, one after the other, each beside what NumPy makes of the same numbers."""

import argparse

import numpy as np

import vkpar

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--devices", default="0*3", help="which devices, such as nvidia&amd (default: three ranks on one)")
devices = vkpar.open_devices(parser.parse_args().devices)
n = len(devices)
hosts = np.random.default_rng(0).integers(0, 100, (n, n, 4)).astype(np.float32)  # of each rank, a row for each


def given() -> list[vkpar.Array]:
    return [device.array(host) for device, host in zip(devices, hosts, strict=True)]


def empty(rows: int) -> list[vkpar.Array]:
    return [device.zeros((rows, 4)) for device in devices]


def check(name: str, found: list[vkpar.Array], wanted: list[np.ndarray]) -> None:
    for array, want in zip(found, wanted, strict=True):
        assert np.array_equal(array.numpy().reshape(-1), want.reshape(-1)), name


with vkpar.Communicator(devices, wire="f32") as comm:  # init_process_group; whole numbers travel exactly
    summed = given()
    comm.all_reduce(summed)  # all_reduce(t); op="avg", "max" and others
    check("all_reduce", summed, [hosts.sum(0)] * n)
    summed = given()
    comm.reduce(summed, n - 1)  # reduce(t, dst)
    check("reduce", summed[n - 1 :], [hosts.sum(0)])
    told = given()
    comm.broadcast(told, 0)  # broadcast(t, src)
    check("broadcast", told, [hosts[0]] * n)
    every = empty(n * n)
    comm.all_gather(given(), out=every)  # all_gather_into_tensor(out, t)
    check("all_gather", every, [hosts] * n)
    part = empty(1)
    comm.reduce_scatter(given(), out=part)  # reduce_scatter_tensor(out, t)
    check("reduce_scatter", part, list(hosts.sum(0)))
    comm.scatter(given()[0], 0, out=part)  # scatter(t, parts, src)
    check("scatter", part, list(hosts[0]))
    whole = devices[0].zeros((n * n, 4))
    comm.gather(given(), 0, out=whole)  # gather(t, parts, dst)
    check("gather", [whole], [hosts])
    turned = empty(n)
    comm.all_to_all(given(), out=turned)  # all_to_all_single(out, t)
    check("all_to_all", turned, list(hosts.transpose(1, 0, 2)))
    sent, came = given(), empty(n)
    comm.send_recv([(sent[rank], came[(rank + 1) % n]) for rank in range(n)])  # batch_isend_irecv([...])
    check("send_recv", came, list(np.roll(hosts, 1, 0)))
    work = comm.barrier()  # barrier(); all calls are async_op=True: each returns a Work
    work.wait(10)
print(f"OK: {n} ranks on {' + '.join(device.name for device in devices)}")
