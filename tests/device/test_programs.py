"""Short programs as a new user writes them, on every driver: an image, neighbours of points, a flow."""

from __future__ import annotations

import numpy as np
import pytest

import vkpar

pytestmark = pytest.mark.device


def edges_of(image: vkpar.Array) -> vkpar.Array:
    """Blur an image of uint8 and return the sizes of its gradients, as uint8: ten lines."""
    x = vkpar.pad(image.astype("float32"), 2, "edge")
    row = (x[:, :-2] + 2 * x[:, 1:-1] + x[:, 2:]) * 0.25
    blurred = (row[:-2] + 2 * row[1:-1] + row[2:]) * 0.25
    down = blurred[:-2] - blurred[2:]
    right = blurred[:, :-2] - blurred[:, 2:]
    gy = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    gx = right[:-2] + 2 * right[1:-1] + right[2:]
    return vkpar.clip(vkpar.round(vkpar.hypot(gx, gy)), 0, 255).astype("uint8")


def test_edges_of_an_image(device: vkpar.Device, rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, (24, 31), dtype=np.uint8)
    x = np.pad(image.astype(np.float64), 2, "edge")
    smooth, slope = np.array([1, 2, 1]), np.array([1, 0, -1])

    def passed(a: np.ndarray, down: np.ndarray, right: np.ndarray) -> np.ndarray:
        seen = np.lib.stride_tricks.sliding_window_view(a, (3, 3))
        return np.asarray(np.einsum("yxij,i,j->yx", seen, down, right))

    blurred = passed(x, smooth, smooth) / 16
    want = np.hypot(passed(blurred, slope, smooth), passed(blurred, smooth, slope))
    got = edges_of(device.array(image)).numpy()
    assert got.dtype == np.uint8
    assert np.abs(got - want.clip(0, 255)).max() <= 0.501


def components(points: vkpar.Array, count: int, turns: int = 60) -> vkpar.Array:
    """Return the first principal components, as rows, by iterating and making them orthogonal."""
    centred = points - points.mean(0, keepdims=True)
    spread = vkpar.matmul(centred, centred, transpose_a=True) / len(points)
    found: list[vkpar.Array] = []
    for seed in range(count):
        v = vkpar.random.normal(points.device, spread.shape[0], seed=seed)
        for _ in range(turns):
            v = spread @ v
            for other in found:
                v = v - (v * other).sum() * other
            v = v / vkpar.norm(v)
        found.append(v)
    return vkpar.stack(found)


def neighbours(points: vkpar.Array, queries: vkpar.Array, k: int) -> vkpar.Array:
    """Return the numbers of the ``k`` nearest points of each query."""
    squares = vkpar.square(points).sum(1) - 2 * vkpar.matmul(queries, points, transpose_b=True)
    return vkpar.topk(squares, k, largest=False)[1]


def test_components_and_neighbours(device: vkpar.Device, rng: np.random.Generator) -> None:
    points = (rng.standard_normal((300, 6)) * [9, 5, 1, 0.5, 0.2, 0.1]) @ np.linalg.qr(rng.standard_normal((6, 6)))[0]
    a = device.array(points, "float32")
    found = components(a, 2)
    want = np.linalg.svd(points - points.mean(0), full_matrices=False)[2][:2]
    assert (np.abs((found.numpy() * want).sum(1)) > 1 - 1e-4).all()
    flat = a @ found.T
    held = flat.numpy().astype(np.float64)
    got = neighbours(flat, flat[:20], 5).numpy()
    far = ((held[:20, None] - held[None]) ** 2).sum(-1)
    np.testing.assert_allclose(np.take_along_axis(far, got, 1), np.sort(far, 1)[:, :5], atol=1e-3)
    labels = device.array((held[:, 0] > 0).astype(np.int32))
    votes = vkpar.take(labels, neighbours(flat, flat[:20], 5)).astype("float32").mean(1)
    assert ((votes.numpy() > 0.5) == (held[:20, 0] > 0)).mean() > 0.8


DIRECTIONS = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1)]
WEIGHTS = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4
_MOVED = "; ".join(
    f"_c{n} = {x} * _u + {y} * _v; _e{n} = {w} * _m * (1 + 3 * _c{n} + 4.5 * _c{n} * _c{n} - 1.5 * _s);"
    f" o{n} = f{n} + rate * (_e{n} - f{n})"
    for n, ((x, y), w) in enumerate(zip(DIRECTIONS, WEIGHTS, strict=True))
)
COLLIDE = vkpar.elementwise(
    f"_m = {' + '.join(f'f{n}' for n in range(9))}; _u = (f1 - f2 + f5 - f6 + f7 - f8) / _m;"
    f" _v = (f3 - f4 + f5 - f6 - f7 + f8) / _m; _s = _u * _u + _v * _v; {_MOVED}"
)


def flow(parts: list[vkpar.Array], rate: float, steps: int) -> list[vkpar.Array]:
    """Let populations of a lattice collide and move, around its edges: Lattice-Boltzmann, D2Q9."""
    for _ in range(steps):
        made = COLLIDE(*parts, rate=rate)
        parts = [vkpar.roll(part, direction, (0, 1)) for part, direction in zip(made, DIRECTIONS, strict=True)]
    return parts


def test_a_shear_wave_fades_as_theory_says(device: vkpar.Device) -> None:
    size, rate, steps, swing = 32, 1.25, 40, 0.01
    speed = swing * np.sin(2 * np.pi * np.arange(size) / size)[None, :].repeat(4, 0)
    parts = []
    for (x, _), weight in zip(DIRECTIONS, WEIGHTS, strict=True):
        c = x * speed
        parts.append(device.array((weight * (1 + 3 * c + 4.5 * c * c - 1.5 * speed**2)).astype(np.float32)))
    made = [part.numpy().astype(np.float64) for part in flow(parts, rate, steps)]
    mass = np.sum(made, 0)
    now = sum(x * part for (x, _), part in zip(DIRECTIONS, made, strict=True)) / mass
    viscosity = (1 / rate - 0.5) / 3
    want = np.exp(-viscosity * (2 * np.pi / size) ** 2 * steps)
    assert abs((now * np.sin(2 * np.pi * np.arange(size) / size)).mean() * 2 / swing - want) < 0.01
    assert abs(mass.mean() - 1) < 1e-5
