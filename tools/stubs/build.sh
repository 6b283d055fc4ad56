#!/usr/bin/env bash
# Builds the libraries that stub kernel drivers, of Mesa's source, without its build system.
#   tools/stubs/build.sh SOURCE OUT VENDOR...
# SOURCE: Mesa unpacked; OUT: a folder that has python/ (mako) and include/ (of libdrm), and gets the libraries;
# VENDOR: intel, amdgpu, nouveau or freedreno. Each library is preloaded into a process, where it plays a card.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$1" && pwd)
out=$(cd "$2" && pwd)
shift 2

src=$source/src gen=$out/gen objects=$out/objects
mkdir -p "$gen/intel/dev" "$objects"
export PYTHONPATH=$out/python

flags=(-O1 -w -fPIC -std=gnu11 -fvisibility=hidden -ffunction-sections -fdata-sections -D_GNU_SOURCE -DNDEBUG
    -DHAVE_PTHREAD -DHAVE_STRUCT_TIMESPEC -DHAVE_TIMESPEC_GET -DHAVE_SECURE_GETENV -DHAVE_ENDIAN_H -DHAVE_MEMFD_CREATE
    -DHAVE_PROGRAM_INVOCATION_NAME -DHAVE_DLADDR -DHAVE_POSIX_MEMALIGN -DHAVE_DIRENT_D_TYPE -DHAVE_REALLOCARRAY
    -DHAVE_FUNC_ATTRIBUTE_PACKED -DHAVE_FUNC_ATTRIBUTE_UNUSED -DHAVE___BUILTIN_UNREACHABLE -DHAVE___BUILTIN_CLZ
    -DMAJOR_IN_SYSMACROS -DUTIL_ARCH_LITTLE_ENDIAN=1 -DUTIL_ARCH_BIG_ENDIAN=0 '-DPACKAGE_VERSION="stub"'
    "-I$source/include" "-I$source/include/drm-uapi" "-I$src" "-I$src/intel" "-I$src/intel/dev"
    "-I$gen" "-I$gen/intel" "-I$gen/intel/dev"
    "-I$src/amd" "-I$src/amd/common" "-I$src/freedreno" "-I$src/freedreno/common" "-I$src/nouveau"
    "-I$src/nouveau/headers" "-I$src/gallium/include" "-I$out/include" "-I$out/include/libdrm")

# build OBJECT FILE [FLAG...]: one more of the parts
build() {
    local object=$objects/$1.o file=$2
    shift 2
    cc "${flags[@]}" "$@" -c "$file" -o "$object"
    parts+=("$object")
}

parts=()
for name in anon_file hash_table log os_misc parson ralloc set simple_mtx u_call_once u_debug u_process vma; do
    build "util_$name" "$src/util/$name.c"
done
build drm_shim "$src/drm-shim/drm_shim.c"
shared=("${parts[@]}")

for vendor in "$@"; do
    parts=()
    if [ "$vendor" != intel ]; then build device "$src/drm-shim/device.c"; fi
    case $vendor in
        intel)
            dev=$src/intel/dev
            python3 "$dev/gen_wa_helpers.py" "$dev/mesa_defs.json" "$gen/intel/dev/intel_wa.h" "$gen/intel_wa.c"
            python3 "$dev/intel_device_info_gen_h.py" "$gen/intel/dev/intel_device_info_gen.h"
            python3 "$dev/intel_device_info_serialize_gen_c.py" "$gen/intel_device_info_serialize_gen.c"
            build intel_device "$src/drm-shim/device.c" -Ddrm_shim_ioctl=drm_shim_ioctl_plain
            build fences "$here/fences.c"
            build intel "$src/intel/tools/intel_noop_drm_shim.c"
            build intel_info "$dev/intel_device_info.c"
            build intel_i915 "$dev/i915/intel_device_info.c"
            build intel_wa "$gen/intel_wa.c"
            build intel_serialize "$gen/intel_device_info_serialize_gen.c"
            ;;
        amdgpu) # drivers of Mesa 26 ask for a kernel driver that is newer than what the stub says it is
            sed 's/version_minor = [0-9]*/version_minor = 63/' "$src"/amd/drm-shim/amdgpu_noop_drm_shim.c >"$gen/amdgpu.c"
            build amdgpu "$gen/amdgpu.c" "-I$src/amd/drm-shim"
            build amdgpu_devices "$src/amd/drm-shim/amdgpu_devices.c"
            ;;
        freedreno) # a kernel driver that takes every parameter would have to bind memory, too
            sed '/\[DRM_MSM_SET_PARAM\]/d' "$src/freedreno/drm-shim/freedreno_noop.c" >"$gen/freedreno.c"
            build freedreno "$gen/freedreno.c"
            ;;
        *) build "$vendor" "$src/$vendor/drm-shim/${vendor}_noop.c" ;;
    esac
    cc -shared -Wl,--gc-sections -Wl,-z,defs -o "$out/lib${vendor}_stub.so" "${shared[@]}" "${parts[@]}" \
        -ldl -lpthread -l:libdrm.so.2
done
rm -r "$gen" "$objects"
