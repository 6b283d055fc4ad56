"""Two virtual ranks of one device: the same code runs on a machine with one card as on a rig."""

import numpy as np

import vkpar

info = vkpar.enumerate_devices()[0]
devices = vkpar.open_devices(f"{info.index}*2")
arrays = [device.array(np.full(1000, rank + 1.0, np.float32)) for rank, device in enumerate(devices)]

with vkpar.Communicator(devices) as comm:
    for link in comm.links():
        print(f"rank {link.src} -> rank {link.dst}: {link.kind} ({link.reason})")
    comm.all_reduce(arrays).wait()

assert all((array.numpy() == 3.0).all() for array in arrays)
print("OK: 1 + 2 = 3 on both ranks of", info.name)
