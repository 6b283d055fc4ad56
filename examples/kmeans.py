"""k-means of made-up points, cut into a part for each device; NumPy's run gives the same clusters."""

import argparse

import numpy as np

import vkpar

CLUSTERS, STEPS = 6, 10
rng = np.random.default_rng(0)
middles = 20 * np.array([[x, y, (x + y) % 2] for x in range(3) for y in range(2)])
points = (middles[np.arange(3000) % CLUSTERS] + 2 * rng.standard_normal((3000, 3))).astype(np.float32)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--devices", help="which devices, such as nvidia&amd (default: the GPUs there are)")
devices = vkpar.open_devices(parser.parse_args().devices)
parts = [device.array(part) for device, part in zip(devices, np.array_split(points, len(devices)), strict=True)]
centers = [device.array(points[:CLUSTERS]) for device in devices]
numbers = [device.arange(CLUSTERS, dtype="uint32") for device in devices]  # the type of argmin's results


def nearest(x: vkpar.Array, center: vkpar.Array) -> vkpar.Array:
    return ((x[:, None, :] - center) ** 2).sum(axis=2).argmin(axis=1)


with vkpar.Communicator(devices, wire="f32") as comm:
    for _ in range(STEPS):
        members = [
            (nearest(x, center)[:, None] == number).astype("float32")
            for x, center, number in zip(parts, centers, numbers, strict=True)
        ]
        sums = [member.T @ x for member, x in zip(members, parts, strict=True)]
        counts = [member.sum(axis=0)[:, None] for member in members]
        comm.all_reduce(sums)
        comm.all_reduce(counts)
        centers = [total / count for total, count in zip(sums, counts, strict=True)]
found = np.concatenate([nearest(x, center).numpy() for x, center in zip(parts, centers, strict=True)])

expected = points[:CLUSTERS].astype(np.float64)
for _ in range(STEPS):
    labels = ((points[:, None] - expected) ** 2).sum(axis=2).argmin(axis=1)
    expected = np.array([points[labels == number].mean(axis=0, dtype=np.float64) for number in range(CLUSTERS)])
assert (found == labels).all()
assert np.abs(centers[0].numpy() - expected).max() < 2 * len(points) * 2.0**-23 * np.abs(points).max()  # float32 sums
print(f"OK: {CLUSTERS} clusters of {len(points)} points on {' + '.join(device.name for device in devices)}")
