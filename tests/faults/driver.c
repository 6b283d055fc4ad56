// A Vulkan driver that is of no use, in the way that MODE names: it crashes or hangs when it is loaded, or has no device.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
typedef void (*function)(void);

__attribute__((constructor)) static void load(void) {
    if (MODE == 1)
        abort();
    while (MODE == 2)
        sleep(1);
}

static int32_t create(const void *info, const void *allocator, void **made) {
    (void)info, (void)allocator;
    *made = calloc(1, 64);
    *(uintptr_t *)*made = 0x01CDC0DE; // what the loader asks of handles that it dispatches by
    return 0;
}

static void destroy(void *instance, const void *allocator) {
    (void)allocator;
    free(instance);
}

static int32_t physical(void *instance, uint32_t *count, void **devices) {
    (void)instance, (void)devices;
    *count = 0;
    return 0;
}

static int32_t extensions(const char *layer, uint32_t *count, void *properties) {
    (void)layer, (void)properties;
    *count = 0;
    return 0;
}

static int32_t version(uint32_t *found) {
    *found = (1u << 22) | (3u << 12);
    return 0;
}

static void nothing(void) {}

EXPORT function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    (void)instance;
    if (!strcmp(name, "vkCreateInstance"))
        return (function)create;
    if (!strcmp(name, "vkDestroyInstance"))
        return (function)destroy;
    if (!strcmp(name, "vkEnumeratePhysicalDevices"))
        return (function)physical;
    if (!strcmp(name, "vkEnumerateInstanceExtensionProperties"))
        return (function)extensions;
    if (!strcmp(name, "vkEnumerateInstanceVersion"))
        return (function)version;
    if (!strncmp(name, "vkGetPhysicalDevice", 19) || !strcmp(name, "vkCreateDevice") ||
        !strcmp(name, "vkGetDeviceProcAddr") || !strcmp(name, "vkEnumerateDeviceExtensionProperties"))
        return nothing;
    return 0;
}

EXPORT int32_t vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *number) {
    *number = 5;
    return 0;
}
