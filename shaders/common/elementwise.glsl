// What elementwise kernels are made of; vkpar/ops/generate.py writes the rest of them. It ships with the package as
// vkpar/spirv/elementwise.glsl, in one piece and without comments, for the expressions of users.
#include "whole.glsl"
#include "grid.glsl"
#include "functions.glsl"
#include "long.glsl"
#include "words.glsl"
