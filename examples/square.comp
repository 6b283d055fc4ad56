#version 450
layout(local_size_x = 64) in;
layout(binding = 0) buffer Y { float y[]; };
layout(push_constant) uniform Push { uint n; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] = y[i] * y[i];
}
