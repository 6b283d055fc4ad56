"""What a frozen program must hold beside the modules that PyInstaller sees imported: SPIR-V, and the C helper."""

from PyInstaller.utils.hooks import collect_data_files

datas = collect_data_files("vkpar", includes=["spirv/*"]) + collect_data_files("vulkan")
hiddenimports = ["vkpar.spirv", "vkpar.vulkan.pump._pump", "_cffi_backend"]
