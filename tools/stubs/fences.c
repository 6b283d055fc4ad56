/* Fences for Mesa's drm-shim, whose own are always signaled and whose timelines always read 0.
 *
 * The shim's dispatcher is compiled under another name, and this one stands in its place: synchronization objects keep
 * points, submitting signals what the submission was to signal, and waits wait. Host memory of no bytes is refused, as
 * kernels refuse it: by that drivers find out whether host memory can be imported. Nothing is executed.
 */

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "drm-uapi/drm.h"
#include "drm-uapi/i915_drm.h"

#define MOST (1 << 16)
#define NUMBER(request) (((request) >> 0) & 0xff)

int drm_shim_ioctl_plain(int fd, unsigned long request, void *argument);

static struct {
    bool used, set;
    uint64_t point;
} objects[MOST]; /* by handle; 0 is none */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static int failed(int code) {
    errno = code;
    return -1;
}

static void signal_object(uint32_t handle, uint64_t point) {
    objects[handle % MOST].set = true;
    if (point > objects[handle % MOST].point) objects[handle % MOST].point = point;
}

static bool reached(uint32_t handle, uint64_t point) {
    return point ? objects[handle % MOST].point >= point : objects[handle % MOST].set;
}

static int create(struct drm_syncobj_create *given) {
    for (uint32_t handle = 1; handle < MOST; handle++)
        if (!objects[handle].used) {
            objects[handle].used = true;
            objects[handle].set = given->flags & DRM_SYNCOBJ_CREATE_SIGNALED;
            objects[handle].point = 0;
            given->handle = handle;
            return 0;
        }
    return failed(ENOMEM);
}

/* Wait until all are reached, or any is; `points` is none for binary objects. */
static int wait_for(const uint32_t *handles, const uint64_t *points, uint32_t count, int64_t until, uint32_t flags,
                    uint32_t *first) {
    const struct timespec slice = {until / 1000000000, until % 1000000000};
    for (;;) {
        uint32_t met = 0;
        for (uint32_t i = count; i-- > 0;)
            if (reached(handles[i], points ? points[i] : 0)) met++, *first = i;
        if (flags & DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL ? met == count : met > 0) return 0;
        if (pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &slice) == ETIMEDOUT) return failed(ETIME);
    }
}

static int share(struct drm_syncobj_handle *given, bool into) {
    if (into) return pread(given->fd, &given->handle, 4, 0) == 4 ? 0 : failed(EINVAL);
    given->fd = memfd_create("stub", MFD_CLOEXEC);
    return given->fd >= 0 && pwrite(given->fd, &given->handle, 4, 0) == 4 ? 0 : failed(EINVAL);
}

static void each(const struct drm_syncobj_timeline_array *given, bool query) {
    const uint32_t *handles = (void *)(uintptr_t)given->handles;
    uint64_t *points = (void *)(uintptr_t)given->points;
    for (uint32_t i = 0; i < given->count_handles; i++)
        if (query)
            points[i] = objects[handles[i] % MOST].point;
        else
            signal_object(handles[i], points[i]);
}

static int synchronize(unsigned long number, void *argument) {
    struct drm_syncobj_array *array = argument;
    struct drm_syncobj_wait *wait = argument;
    struct drm_syncobj_timeline_wait *timeline = argument;
    struct drm_syncobj_transfer *transfer = argument;
    uint32_t *handles = (void *)(uintptr_t)array->handles;
    switch (number) {
    case NUMBER(DRM_IOCTL_SYNCOBJ_CREATE):
        return create(argument);
    case NUMBER(DRM_IOCTL_SYNCOBJ_DESTROY):
        objects[((struct drm_syncobj_destroy *)argument)->handle % MOST].used = false;
        return 0;
    case NUMBER(DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD):
    case NUMBER(DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE):
        return share(argument, number == NUMBER(DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE));
    case NUMBER(DRM_IOCTL_SYNCOBJ_RESET):
        for (uint32_t i = 0; i < array->count_handles; i++) objects[handles[i] % MOST].set = false;
        return 0;
    case NUMBER(DRM_IOCTL_SYNCOBJ_SIGNAL):
        for (uint32_t i = 0; i < array->count_handles; i++) signal_object(handles[i], 0);
        return 0;
    case NUMBER(DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL):
    case NUMBER(DRM_IOCTL_SYNCOBJ_QUERY):
        each(argument, number == NUMBER(DRM_IOCTL_SYNCOBJ_QUERY));
        return 0;
    case NUMBER(DRM_IOCTL_SYNCOBJ_TRANSFER):
        signal_object(transfer->dst_handle, transfer->dst_point);
        return 0;
    case NUMBER(DRM_IOCTL_SYNCOBJ_WAIT):
        return wait_for((void *)(uintptr_t)wait->handles, NULL, wait->count_handles, wait->timeout_nsec, wait->flags,
                        &wait->first_signaled);
    default:
        return wait_for((void *)(uintptr_t)timeline->handles, (void *)(uintptr_t)timeline->points,
                        timeline->count_handles, timeline->timeout_nsec, timeline->flags, &timeline->first_signaled);
    }
}

/* Signal what a submission to i915 is to signal: nothing runs, so that all of it is done. */
static void submit(const struct drm_i915_gem_execbuffer2 *given) {
    const struct i915_user_extension *next = NULL;
    if (given->flags & I915_EXEC_FENCE_ARRAY) {
        const struct drm_i915_gem_exec_fence *fences = (void *)(uintptr_t)given->cliprects_ptr;
        for (uint32_t i = 0; i < given->num_cliprects; i++)
            if (fences[i].flags & I915_EXEC_FENCE_SIGNAL) signal_object(fences[i].handle, 0);
    } else if (given->flags & I915_EXEC_USE_EXTENSIONS) {
        next = (void *)(uintptr_t)given->cliprects_ptr;
    }
    for (; next; next = (void *)(uintptr_t)next->next_extension) {
        const struct drm_i915_gem_execbuffer_ext_timeline_fences *timelines = (const void *)next;
        const struct drm_i915_gem_exec_fence *fences = (void *)(uintptr_t)timelines->handles_ptr;
        const uint64_t *points = (void *)(uintptr_t)timelines->values_ptr;
        if (next->name != DRM_I915_GEM_EXECBUFFER_EXT_TIMELINE_FENCES) continue;
        for (uint64_t i = 0; i < timelines->fence_count; i++)
            if (fences[i].flags & I915_EXEC_FENCE_SIGNAL) signal_object(fences[i].handle, points ? points[i] : 0);
    }
}

int drm_shim_ioctl(int fd, unsigned long request, void *argument) {
    const unsigned long number = NUMBER(request);
    int result;
    if (number == NUMBER(DRM_IOCTL_I915_GEM_USERPTR)) {
        if (!((struct drm_i915_gem_userptr *)argument)->user_size) return failed(EINVAL);
    } else if (number == NUMBER(DRM_IOCTL_I915_GETPARAM)) {
        const struct drm_i915_getparam *asked = argument;
        if (asked->param == I915_PARAM_HAS_USERPTR_PROBE) return *asked->value = 1, 0;
    }
    const bool binary = number >= NUMBER(DRM_IOCTL_SYNCOBJ_CREATE) && number <= NUMBER(DRM_IOCTL_SYNCOBJ_SIGNAL);
    const bool timeline = number >= NUMBER(DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT) &&
                          number <= NUMBER(DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL);
    const bool fence = binary || timeline;
    const bool submits = number == NUMBER(DRM_IOCTL_I915_GEM_EXECBUFFER2);
    if (!fence && !submits) return drm_shim_ioctl_plain(fd, request, argument);
    pthread_mutex_lock(&lock);
    result = fence ? synchronize(number, argument) : 0;
    if (submits) submit(argument);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return result;
}
