"""A compute kernel of your own, in GLSL, on every device."""

import struct

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
for device in vkpar.open_devices():
    scale = vkpar.Kernel(device, SCALE)
    array = device.array(x)
    scale(-(-x.size // 64), array, push=struct.pack("If", x.size, 2.0))
    assert (array.numpy() == 2 * x).all()
    print("OK:", device.name)
