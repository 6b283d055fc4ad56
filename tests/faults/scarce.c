// The C helper over a driver that does nothing, with an allocator that says no when it is told to.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static long left = -1; // allocations that succeed; negative: all

static int refuses(void) { return left == 0 || (left > 0 && left-- == 0); }
static void *scarce_malloc(size_t n) { return refuses() ? NULL : malloc(n); }
static void *scarce_calloc(size_t n, size_t size) { return refuses() ? NULL : calloc(n, size); }
static void *scarce_realloc(void *p, size_t n) { return refuses() ? NULL : realloc(p, n); }
#define malloc scarce_malloc
#define calloc scarce_calloc
#define realloc scarce_realloc
#include "_pump.c"

static uint64_t fills, dispatches, stamps, reached;
static int has_sets;

static int32_t yes(void) { return SUCCESS; }
static int32_t make(void *device, const void *info, const void *allocator, uint64_t *made) {
    (void)device, (void)info, (void)allocator;
    *made = 1;
    return SUCCESS;
}
static int32_t allocate(void *device, const void *info, void **made) {
    (void)device, (void)info;
    *made = &left;
    return SUCCESS;
}
static int32_t allocate_sets(void *device, const void *info, uint64_t *made) {
    (void)device, (void)info;
    *made = 1;
    return has_sets ? SUCCESS : OUT_OF_HOST_MEMORY;
}
static void fill_words(void) { fills++; }
static void dispatch_groups(void) { dispatches++; }
static void stamp(void) { stamps++; }
static int32_t count(void *device, uint64_t timeline, uint64_t *value) {
    (void)device, (void)timeline;
    *value = reached;
    return SUCCESS;
}

vkp_queue *scarce_queue(uint64_t device) {
    uint64_t fine = (uintptr_t)yes;
    return vkp_queue_new(device, device, 1, fine, fine, fine, (uintptr_t)count);
}

vkp_stream *scarce_stream(vkp_queue *q) {
    uint64_t functions[sizeof(calls) / sizeof(void *)];
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) functions[i] = (uintptr_t)yes;
    functions[CALL(create_pool)] = functions[CALL(create_descriptors)] = (uintptr_t)make;
    functions[CALL(allocate)] = (uintptr_t)allocate;
    functions[CALL(allocate_sets)] = (uintptr_t)allocate_sets;
    functions[CALL(fill)] = (uintptr_t)fill_words;
    functions[CALL(dispatch)] = (uintptr_t)dispatch_groups;
    return vkp_stream_new(q, 0, 0, 1, 0, functions);
}

void scarce_memory(long allocations) { left = allocations; }
void scarce_sets(int there) { has_sets = there; }
uint64_t scarce_stamp(void) { return (uintptr_t)stamp; }
void scarce_reach(uint64_t value) { reached = value; }
// out: how many fills, dispatches and timestamps were recorded.
void scarce_counts(uint64_t *out) { out[0] = fills, out[1] = dispatches, out[2] = stamps; }
