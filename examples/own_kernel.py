"""A compute kernel of your own, in GLSL, on every device."""

import argparse

import numpy as np

import vkpar

SCALE = """
#version 450
layout(local_size_x = 64) in;
layout(binding = 0) buffer Values { float values[]; };
layout(push_constant) uniform Push { uint count; float factor; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < count) values[i] *= factor;
}
"""

x = np.linspace(-1, 1, 1001, dtype=np.float32)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--devices", help="which devices, such as nvidia&amd (default: the GPUs there are)")
devices = vkpar.open_devices(parser.parse_args().devices)
with vkpar.Kernel(devices, SCALE) as scale:  # compiled once; a call runs where its arrays are
    for device in devices:
        array = device.array(x)
        for (piece,) in vkpar.pieces(array, kernel=scale):  # one, unless a device starts fewer work-groups
            scale(piece, elements=piece.size, push={"count": piece.size, "factor": 2.0})
        assert (array.numpy() == 2 * x).all()
        print("OK:", device.name)
