"""A compute kernel of your own, in GLSL, on every device."""

import struct

import numpy as np

import vkpar

# A device runs a limited number of work-groups along x (65,535 on many): two dimensions hold as many as there are.
SCALE = """
#version 450
layout(local_size_x = 64) in;
layout(binding = 0) buffer Values { float values[]; };
layout(push_constant) uniform Push { uint count; float factor; };
void main() {
    uint row = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    uint i = gl_GlobalInvocationID.y * row + gl_GlobalInvocationID.x;
    if (i < count) values[i] *= factor;
}
"""

x = np.linspace(-1, 1, 1001, dtype=np.float32)
for device in vkpar.open_devices():
    with vkpar.Kernel(device, SCALE) as scale:
        array = device.array(x)
        groups = -(-x.size // 64)
        rows = -(-groups // device.limits.max_workgroup_count[0])
        scale((-(-groups // rows), rows), array, push=struct.pack("If", x.size, 2.0))
        assert (array.numpy() == 2 * x).all()
    print("OK:", device.name)
