#!/usr/bin/env bash
# Gets a GLSL compiler that knows cooperative matrices and bfloat16 (glslang 16) into .cache/glslang, for
# tools/compile_shaders.py: Debian's packages of a newer suite than 12, unpacked beside their own C library and run
# through that one's loader, so that nothing is installed. Give another suite as an argument (13's glslang knows no
# bfloat16).  tools/lib/glslang.sh [forky]
set -euo pipefail
suite=${1:-forky}
top=$(cd "$(dirname "$0")/../.." && pwd)
cache=$top/.cache/glslang
rm -rf "$cache"
mkdir -p "$cache/bin" "$cache/apt/lists/partial" "$cache/apt/archives/partial"
cd "$cache"

# The mirror that this machine uses, for the packages' signed index.
mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } |
  grep -oE '(URIs: |deb (\[[^]]*\] )?)[a-z]+://[^ ]+' | grep -v security | head -n 1 | grep -oE '[a-z]+://[^ ]+' || true)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -n "$mirror" ] || { echo "error: apt names no mirror here" >&2; exit 1; }
echo "deb [signed-by=$keys] $mirror $suite main" >apt/sources.list
apt=(-oDir::Etc::sourcelist="$cache/apt/sources.list" -oDir::Etc::sourceparts=- -oDir::State::lists="$cache/apt/lists"
  -oDir::Cache="$cache/apt" -oAPT::Sandbox::User=root)
apt-get "${apt[@]}" update -qq
apt-get "${apt[@]}" download -qq glslang-tools spirv-tools libc6 libstdc++6 libgcc-s1

for package in *.deb; do dpkg -x "$package" root; done
rm -rf -- *.deb apt
libraries=$cache/root/usr/lib/$(uname -m)-linux-gnu
loader=$(find "$libraries" -name 'ld-linux-*.so.*' | head -n 1)
for tool in glslangValidator spirv-opt spirv-val spirv-dis; do
  printf '#!/bin/sh\nexec "%s" --library-path "%s" "%s" "$@"\n' "$loader" "$libraries" "$cache/root/usr/bin/$tool" \
    >"bin/$tool"
  chmod +x "bin/$tool"
done
bin/glslangValidator --version | head -n 1
