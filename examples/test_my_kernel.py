from pathlib import Path

import numpy as np

import vkpar
from vkpar.testing import assert_allclose, guarded


def test_square(vk_device):  # once on every device of the machine
    square = vkpar.Kernel(vk_device, Path(__file__).with_name("square.comp"))
    x, y = np.linspace(-3, 3, 1001, dtype="float32"), guarded(vk_device, 1001)
    y.write(x)
    square(y, elements=x.size, push={"n": x.size})
    assert_allclose(y, x.astype("float64") ** 2, ulp=1)
