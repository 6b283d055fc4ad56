// A Vulkan layer that makes calls fail or come late, as drivers do when a card falls off the bus or memory runs out.
// The process that it is loaded into controls it by the functions at the end, which Python calls through ctypes.
// What the loader and a layer say to each other is declared here, so that no Vulkan header is needed.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, OUT_OF_HOST_MEMORY = -1, INITIALIZATION_FAILED = -3, DEVICE_LOST = -4 };
enum { LOADER_INSTANCE = 47, LOADER_DEVICE = 48, LINK_INFO = 0 };

typedef int32_t result;
typedef void (*function)(void);
typedef function (*proc_addr)(void *, const char *);

struct link {
    struct link *next;
    proc_addr instance_proc;
    proc_addr device_proc; // of an instance: vk_layerGetPhysicalDeviceProcAddr, which this layer does not need
};

struct chained { // VkLayerInstanceCreateInfo, VkLayerDeviceCreateInfo
    int32_t type;
    struct chained *next;
    int32_t kind;
    struct link *link;
};

struct negotiation { // VkNegotiateLayerInterface
    int32_t type;
    void *next;
    uint32_t version;
    proc_addr instance_proc, device_proc, physical_proc;
};

// ---- the calls that fail ----

// PLAIN calls reach the driver of a lost device; LOSABLE ones fail there; REUSING ones wait until its work is over.
enum { PLAIN, LOSABLE, REUSING };

#define CREATE(X, name) X(name, PLAIN, (void *of, const void *info, const void *how, void *made), (of, info, how, made))

#define DEVICE_CALLS(X)                                                                                                \
    X(vkQueueSubmit, LOSABLE, (void *of, uint32_t n, const void *infos, uint64_t fence), (of, n, infos, fence))        \
    X(vkQueueWaitIdle, LOSABLE, (void *of), (of))                                                                      \
    X(vkWaitSemaphores, LOSABLE, (void *of, const void *info, uint64_t ns), (of, info, ns))                            \
    X(vkGetSemaphoreCounterValue, LOSABLE, (void *of, uint64_t semaphore, void *value), (of, semaphore, value))        \
    X(vkGetQueryPoolResults, LOSABLE,                                                                                  \
      (void *of, uint64_t pool, uint32_t first, uint32_t n, size_t size, void *data, uint64_t stride, uint32_t flags), \
      (of, pool, first, n, size, data, stride, flags))                                                                 \
    X(vkSignalSemaphore, PLAIN, (void *of, const void *info), (of, info))                                              \
    X(vkGetSemaphoreFdKHR, PLAIN, (void *of, const void *info, void *fd), (of, info, fd))                              \
    X(vkImportSemaphoreFdKHR, PLAIN, (void *of, const void *info), (of, info))                                         \
    X(vkGetMemoryHostPointerPropertiesEXT, PLAIN, (void *of, int32_t kind, const void *host, void *properties),        \
      (of, kind, host, properties))                                                                                    \
    X(vkAllocateMemory, PLAIN, (void *of, const void *info, const void *how, void *made), (of, info, how, made))       \
    X(vkMapMemory, PLAIN, (void *of, uint64_t memory, uint64_t offset, uint64_t size, uint32_t flags, void *data),     \
      (of, memory, offset, size, flags, data))                                                                         \
    X(vkBindBufferMemory, PLAIN, (void *of, uint64_t buffer, uint64_t memory, uint64_t offset),                        \
      (of, buffer, memory, offset))                                                                                    \
    X(vkCreateComputePipelines, PLAIN,                                                                                 \
      (void *of, uint64_t cache, uint32_t n, const void *infos, const void *how, void *made),                          \
      (of, cache, n, infos, how, made))                                                                                \
    X(vkAllocateCommandBuffers, PLAIN, (void *of, const void *info, void *made), (of, info, made))                     \
    X(vkAllocateDescriptorSets, PLAIN, (void *of, const void *info, void *made), (of, info, made))                     \
    X(vkResetCommandPool, REUSING, (void *of, uint64_t pool, uint32_t flags), (of, pool, flags))                       \
    X(vkResetDescriptorPool, REUSING, (void *of, uint64_t pool, uint32_t flags), (of, pool, flags))                    \
    X(vkBeginCommandBuffer, REUSING, (void *of, const void *info), (of, info))                                         \
    X(vkEndCommandBuffer, PLAIN, (void *of), (of))                                                                     \
    CREATE(X, vkCreateBuffer)                                                                                          \
    CREATE(X, vkCreateBufferView)                                                                                      \
    CREATE(X, vkCreateSemaphore)                                                                                       \
    CREATE(X, vkCreateQueryPool)                                                                                       \
    CREATE(X, vkCreateShaderModule)                                                                                    \
    CREATE(X, vkCreateDescriptorSetLayout)                                                                             \
    CREATE(X, vkCreatePipelineLayout)                                                                                  \
    CREATE(X, vkCreateDescriptorPool)                                                                                  \
    CREATE(X, vkCreateCommandPool)

#define DESTROYERS(X)                                                                                                  \
    X(vkFreeMemory) X(vkDestroyBuffer) X(vkDestroySemaphore) X(vkDestroyQueryPool) X(vkDestroyShaderModule)            \
    X(vkDestroyDescriptorSetLayout) X(vkDestroyPipelineLayout) X(vkDestroyPipeline) X(vkDestroyDescriptorPool)         \
    X(vkDestroyCommandPool) X(vkDestroyBufferView)

#define NUMBER(name, ...) AT_##name,
#define NAME(name, ...) #name,
enum {
    DEVICE_CALLS(NUMBER) DEVICE_END,
    AT_vkCreateInstance = DEVICE_END,
    AT_vkEnumeratePhysicalDevices,
    AT_vkCreateDevice,
    CALLS
};
enum { DESTROYERS(NUMBER) DESTROYER_END };
static const char *const names[CALLS + 1] = {
    DEVICE_CALLS(NAME) "vkCreateInstance", "vkEnumeratePhysicalDevices", "vkCreateDevice", NULL};
static const char *const destroyers[] = {DESTROYERS(NAME)};

static atomic_long counted[CALLS];
static struct {
    atomic_int call; // -1: none
    atomic_long left; // calls until the first one that fails
    long times, microseconds;
    result answer;
} armed = {.call = -1};
static atomic_int fired;
static _Atomic(void *) victim; // the VkDevice whose call failed first

// Counts the call; sleeps where it is to come late. Returns what it fails with, SUCCESS where the driver is to be asked.
static result strike(int call, void *device) {
    atomic_fetch_add(&counted[call], 1);
    if (atomic_load(&armed.call) != call) return SUCCESS;
    long left = atomic_fetch_sub(&armed.left, 1);
    if (left > 1 || left <= 1 - armed.times) return SUCCESS;
    if (!atomic_fetch_add(&fired, 1)) atomic_store(&victim, device);
    long wait = armed.microseconds;
    if (wait) nanosleep(&(struct timespec){wait / 1000000, wait % 1000000 * 1000}, NULL);
    return armed.answer;
}

// ---- devices ----

struct device {
    _Atomic(void *) key; // the loader's table, to which the device, its queues and command buffers point first
    void *handle;
    proc_addr proc;
    function calls[DEVICE_END], destroyers[DESTROYER_END], destroy, wait_idle;
    atomic_int lost, settled, stuck;
};

static struct device devices[256];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static proc_addr next_instance_proc;
static void *instance;
static function next_enumerate_physical; // asked for at once: later the loader names the whole chain's first one
static atomic_int stuck;

static struct device *device_of(void *key) {
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (atomic_load(&devices[i].key) == key) return &devices[i];
    return NULL;
}

static void *idle(void *argument) {
    struct device *device = argument;
    ((result(*)(void *))device->wait_idle)(device->handle);
    return NULL;
}

// The work of a device that is really lost is over, so that all may be freed; here the driver still does it.
static int is_stuck(struct device *device) {
    if (!atomic_load(&device->lost)) return 0;
    pthread_mutex_lock(&lock);
    if (!device->settled) {
        pthread_t thread;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 10;
        device->stuck = pthread_create(&thread, NULL, idle, device) || pthread_timedjoin_np(thread, NULL, &until);
        device->settled = 1;
        stuck += device->stuck;
    }
    pthread_mutex_unlock(&lock);
    return device->stuck;
}

static result before(struct device *device, int call, int kind) {
    if (kind == LOSABLE && atomic_load(&device->lost)) return DEVICE_LOST;
    result found = strike(call, device->handle);
    if (found == DEVICE_LOST) atomic_store(&device->lost, 1);
    if (!found && kind == REUSING && is_stuck(device)) return OUT_OF_HOST_MEMORY;
    return found;
}

#define WRAPPER(name, kind, parameters, arguments)                                                                     \
    static result faulty_##name parameters {                                                                           \
        struct device *device = device_of(*(void **)of);                                                               \
        result found = before(device, AT_##name, kind);                                                                \
        return found ? found : ((result(*) parameters)device->calls[AT_##name]) arguments;                             \
    }
DEVICE_CALLS(WRAPPER)

#define DESTROYER(name)                                                                                                \
    static void careful_##name(void *of, uint64_t handle, const void *how) {                                           \
        struct device *device = device_of(*(void **)of);                                                               \
        if (!is_stuck(device)) ((void (*)(void *, uint64_t, const void *))device->destroyers[AT_##name])(of, handle, how); \
    }
DESTROYERS(DESTROYER)

#define WRAPPED(name, ...) (function)faulty_##name,
#define CAREFUL(name) (function)careful_##name,
static const function wrapped[] = {DEVICE_CALLS(WRAPPED)}, careful[] = {DESTROYERS(CAREFUL)};

static void destroy_device(void *of, const void *how) {
    struct device *device = of ? device_of(*(void **)of) : NULL;
    if (!device || is_stuck(device)) return;
    atomic_store(&device->key, NULL);
    ((void (*)(void *, const void *))device->destroy)(of, how);
}

static int at(const char *const *list, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], name)) return (int)i;
    return -1;
}

static function device_proc(void *of, const char *name) {
    struct device *device = device_of(*(void **)of);
    int call = at(names, DEVICE_END, name), destroyer = at(destroyers, DESTROYER_END, name);
    if (call >= 0) return device->calls[call] ? wrapped[call] : NULL;
    if (destroyer >= 0) return careful[destroyer];
    if (!strcmp(name, "vkDestroyDevice")) return (function)destroy_device;
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (function)device_proc;
    return device->proc(of, name);
}

// ---- instances ----

static struct chained *chain(const void *info, int32_t type) {
    struct chained *found = ((struct chained *)info)->next; // every create info begins with its type and a pointer
    while (found && !(found->type == type && found->kind == LINK_INFO)) found = found->next;
    return found;
}

static result create_instance(const void *info, const void *how, void **made) {
    struct chained *loader = chain(info, LOADER_INSTANCE);
    if (!loader) return INITIALIZATION_FAILED;
    result found = strike(AT_vkCreateInstance, NULL);
    if (found) return found;
    next_instance_proc = loader->link->instance_proc;
    loader->link = loader->link->next;
    function create = next_instance_proc(NULL, "vkCreateInstance");
    found = ((result(*)(const void *, const void *, void **))create)(info, how, made);
    if (found) return found;
    instance = *made;
    next_enumerate_physical = next_instance_proc(instance, "vkEnumeratePhysicalDevices");
    return SUCCESS;
}

static result enumerate_physical(void *of, uint32_t *n, void *devices_found) {
    result found = strike(AT_vkEnumeratePhysicalDevices, NULL);
    return found ? found : ((result(*)(void *, uint32_t *, void *))next_enumerate_physical)(of, n, devices_found);
}

static void note(struct device *device, void *handle, proc_addr proc) {
    memset(device, 0, sizeof *device);
    device->handle = handle;
    device->proc = proc;
    for (int i = 0; i < DEVICE_END; i++) device->calls[i] = proc(handle, names[i]);
    for (int i = 0; i < DESTROYER_END; i++) device->destroyers[i] = proc(handle, destroyers[i]);
    device->destroy = proc(handle, "vkDestroyDevice");
    device->wait_idle = proc(handle, "vkDeviceWaitIdle");
    atomic_store(&device->key, *(void **)handle);
}

static result create_device(void *physical, const void *info, const void *how, void **made) {
    struct chained *loader = chain(info, LOADER_DEVICE);
    if (!loader) return INITIALIZATION_FAILED;
    result found = strike(AT_vkCreateDevice, NULL);
    if (found) return found;
    proc_addr instance_proc = loader->link->instance_proc, proc = loader->link->device_proc;
    loader->link = loader->link->next;
    function create = instance_proc(instance, "vkCreateDevice");
    found = ((result(*)(void *, const void *, const void *, void **))create)(physical, info, how, made);
    if (found) return found;
    pthread_mutex_lock(&lock);
    struct device *device = device_of(NULL); // a free place
    if (device) note(device, *made, proc);
    pthread_mutex_unlock(&lock);
    return device ? SUCCESS : INITIALIZATION_FAILED;
}

static function instance_proc(void *of, const char *name) {
    int call = at(names, DEVICE_END, name), destroyer = at(destroyers, DESTROYER_END, name);
    if (call >= 0) return wrapped[call];
    if (destroyer >= 0) return careful[destroyer];
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (function)instance_proc;
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (function)device_proc;
    if (!strcmp(name, "vkCreateInstance")) return (function)create_instance;
    if (!strcmp(name, "vkEnumeratePhysicalDevices")) return (function)enumerate_physical;
    if (!strcmp(name, "vkCreateDevice")) return (function)create_device;
    if (!strcmp(name, "vkDestroyDevice")) return (function)destroy_device;
    return of ? next_instance_proc(of, name) : NULL;
}

EXPORT result vkNegotiateLoaderLayerInterfaceVersion(struct negotiation *said) {
    if (said->version < 2) return INITIALIZATION_FAILED;
    said->version = 2;
    said->instance_proc = instance_proc;
    said->device_proc = device_proc;
    said->physical_proc = NULL;
    return SUCCESS;
}

// ---- what the tests call ----

// Makes the nth next call of that name, and the times - 1 after it, come late and answer so (SUCCESS: as the driver does).
// Returns -1 where the layer does not know the name.
EXPORT int faults_arm(const char *name, long nth, long times, result answer, long microseconds) {
    int call = at(names, CALLS, name);
    if (call < 0) return -1;
    atomic_store(&armed.call, -1);
    atomic_store(&armed.left, nth);
    armed.times = times;
    armed.microseconds = microseconds;
    armed.answer = answer;
    atomic_store(&fired, 0);
    atomic_store(&victim, NULL);
    atomic_store(&armed.call, call);
    return 0;
}

// Lets all calls through again; returns how many it has struck.
EXPORT int faults_disarm(void) {
    atomic_store(&armed.call, -1);
    return atomic_load(&fired);
}

EXPORT const char *faults_name(int call) { return names[call]; } // NULL at the end

EXPORT long faults_count(int call) { return atomic_load(&counted[call]); }

EXPORT void *faults_victim(void) { return atomic_load(&victim); }

EXPORT int faults_stuck(void) { return atomic_load(&stuck); } // lost devices whose work never ended
