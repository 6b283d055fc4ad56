"""Two virtual ranks of one device: the same code runs on a machine with one card as on a rig."""

import argparse

import numpy as np

import vkpar

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--devices", default="0*2", help="which devices, such as nvidia&amd (default: two ranks on one)")
devices = vkpar.open_devices(parser.parse_args().devices)
arrays = [device.array(np.full(1000, rank + 1.0, np.float32)) for rank, device in enumerate(devices)]

with vkpar.Communicator(devices) as comm:
    for link in comm.links():
        print(f"rank {link.src} -> rank {link.dst}: {link.kind} ({link.reason})")
    comm.all_reduce(arrays).wait()

total = sum(range(1, len(devices) + 1))
assert all((array.numpy() == total).all() for array in arrays)
print(f"OK: {total} on all ranks of {' + '.join(device.name for device in devices)}")
