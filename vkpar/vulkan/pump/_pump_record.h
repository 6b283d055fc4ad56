/* Records operations into a command buffer, whoever owns that.
 *
 * A barrier stands only where an operation touches bytes that one since the last barrier touched and one of the two
 * writes them; each buffer begins with one.
 */
#ifndef VKPAR_PUMP_RECORD_H
#define VKPAR_PUMP_RECORD_H

#include "_pump_types.h"

enum { SPANS = 96 };                     /* touched ranges that are told apart between two barriers */
enum { SETS = 64, DESCRIPTORS = 256 };   /* of a descriptor pool, where the driver has no push descriptors */

enum { S_POOL = 39, S_ALLOCATE = 40, S_BEGIN = 42, S_BARRIER = 46, S_DESCRIPTOR_POOL = 33, S_SETS = 34, S_WRITE = 35 };
enum { STAGES = 0x800 | 0x1000, READS = 0x20 | 0x800, WRITES = 0x40 | 0x1000 }; /* of shaders and of copies */
enum { STORAGE_BUFFER = 7, COMPUTE_POINT = 1, COMPUTE_STAGE = 0x20, ONE_TIME = 1, TRANSIENT = 1 };
enum { POOL_EMPTY = -1000069000, POOL_FRAGMENTED = -12, DEVICE_LOST = -4 };

typedef struct { int32_t type; const void *next; uint32_t flags, family; } pool_info;
typedef struct { int32_t type; const void *next; uint64_t pool; int32_t level; uint32_t count; } allocate_info;
typedef struct { int32_t type; const void *next; uint32_t flags; const void *inherited; } begin_info;
typedef struct { int32_t type; const void *next; uint32_t written, read; } barrier_info;
typedef struct { int32_t type; uint32_t count; } pool_size;
typedef struct {
    int32_t type; const void *next; uint32_t flags, sets, sizes; const pool_size *size;
} descriptor_pool_info;
typedef struct { int32_t type; const void *next; uint64_t pool; uint32_t count; const uint64_t *layouts; } sets_info;
typedef struct { uint64_t buffer, offset, nbytes; } buffer_info;
typedef struct {
    int32_t type; const void *next; uint64_t set; uint32_t binding, element, count; int32_t kind;
    const void *images; const buffer_info *buffers; const void *views;
} write_info;
typedef struct { uint64_t from, to, nbytes; } copy_info;
typedef int32_t (*idle_fn)(void *);

/* Entry points of the device, in the order in which Python gives them. */
typedef struct {
    int32_t (*create_pool)(void *, const pool_info *, const void *, uint64_t *);
    void (*destroy_pool)(void *, uint64_t, const void *);
    int32_t (*reset_pool)(void *, uint64_t, uint32_t);
    int32_t (*allocate)(void *, const allocate_info *, void **);
    int32_t (*begin)(void *, const begin_info *);
    int32_t (*end)(void *);
    void (*barrier)(void *, uint32_t, uint32_t, uint32_t, uint32_t, const barrier_info *, uint32_t, const void *,
                    uint32_t, const void *);
    void (*bind)(void *, int32_t, uint64_t);
    void (*bind_sets)(void *, int32_t, uint64_t, uint32_t, uint32_t, const uint64_t *, uint32_t, const uint32_t *);
    void (*push)(void *, uint64_t, uint32_t, uint32_t, uint32_t, const void *);
    void (*dispatch)(void *, uint32_t, uint32_t, uint32_t);
    void (*copy)(void *, uint64_t, uint64_t, uint32_t, const copy_info *);
    void (*fill)(void *, uint64_t, uint64_t, uint64_t, uint32_t);
    int32_t (*create_descriptors)(void *, const descriptor_pool_info *, const void *, uint64_t *);
    void (*destroy_descriptors)(void *, uint64_t, const void *);
    int32_t (*reset_descriptors)(void *, uint64_t, uint32_t);
    int32_t (*allocate_sets)(void *, const sets_info *, uint64_t *);
    void (*write_sets)(void *, uint32_t, const write_info *, uint32_t, const void *);
    void (*push_set)(void *, int32_t, uint64_t, uint32_t, uint32_t, const write_info *); /* NULL: no such extension */
} calls;

typedef struct { uint64_t buffer, start, end; int writes; } span;

/* What is done to bytes. UPDATES: some are written, and read perhaps; REPLACES: all are written; PLACES: some are written,
 * none read; BOUND: nothing. */
enum { READS_IT, UPDATES, REPLACES, PLACES, BOUND, VALUE };
static int is_write(uint32_t kind) { return kind == UPDATES || kind == REPLACES || kind == PLACES; }

/* Appends operations to a command buffer, whoever owns that: what was touched since the last barrier, what is bound. */
typedef struct {
    const calls *vk;
    void *commands;
    uint64_t bound;                      /* the pipeline */
    span spans[SPANS];
    uint32_t nspans;
    int every;                           /* a barrier before each operation */
    int strange;                         /* others recorded something since the last barrier */
    uint64_t barriers;
} recorder;

static void record_barrier(recorder *to) {
    barrier_info all = {S_BARRIER, NULL, WRITES, READS | WRITES};
    to->vk->barrier(to->commands, STAGES, STAGES, 0, 1, &all, 0, NULL, 0, NULL);
    to->nspans = 0;
    to->strange = 0;
    to->barriers++;
}

static int meets(const recorder *to, const span *other) {
    for (uint32_t i = 0; i < to->nspans; i++) {
        const span *s = &to->spans[i];
        if (s->buffer == other->buffer && s->start < other->end && other->start < s->end && (s->writes | other->writes))
            return 1;
    }
    return 0;
}

/* Comes before an operation that touches `spans`. One with more of them than fit has barriers on both sides. */
static void order(recorder *to, const span *spans, uint32_t n) {
    int wanted = to->every || to->strange || to->nspans + n > SPANS;
    for (uint32_t i = 0; i < n && !wanted; i++) wanted = meets(to, &spans[i]);
    if (wanted) record_barrier(to);
    for (uint32_t i = 0; i < n && n <= SPANS; i++) {
        span *s = NULL;
        for (uint32_t k = 0; k < to->nspans && !s; k++) {
            span *known = &to->spans[k];
            if (known->buffer == spans[i].buffer && known->start == spans[i].start && known->end == spans[i].end)
                s = known;
        }
        if (s) s->writes |= spans[i].writes;
        else to->spans[to->nspans++] = spans[i];
    }
}

static void begin_recording(recorder *to, void *commands) {
    to->commands = commands;
    to->bound = 0;
    record_barrier(to);                  /* submission order alone makes nothing visible */
}

static void record_dispatch(recorder *to, const vkp_plan *p, const buffer_info *buffers, uint64_t set,
                            const void *push) {
    const calls *vk = to->vk;
    uint32_t n = p->bindings;
    span spans[n ? n : 1];
    for (uint32_t i = 0; i < n; i++) {
        uint64_t start = buffers[i].offset;
        spans[i] = (span){buffers[i].buffer, start, start + buffers[i].nbytes, is_write(p->binding[i].kind)};
    }
    order(to, spans, n);
    if (to->bound != p->pipeline) vk->bind(to->commands, COMPUTE_POINT, p->pipeline);
    to->bound = p->pipeline;
    if (set) {
        vk->bind_sets(to->commands, COMPUTE_POINT, p->layout, 0, 1, &set, 0, NULL);
    } else if (n) {
        write_info write = {S_WRITE, NULL, 0, 0, 0, n, STORAGE_BUFFER, NULL, buffers, NULL};
        vk->push_set(to->commands, COMPUTE_POINT, p->layout, 0, 1, &write);
    }
    if (p->push_nbytes) vk->push(to->commands, p->layout, COMPUTE_STAGE, 0, p->push_nbytes, push);
    vk->dispatch(to->commands, p->groups[0], p->groups[1], p->groups[2]);
    if (n > SPANS) record_barrier(to);
}

typedef struct { uint64_t from, start, to, at, nbytes; } copy_part;
typedef struct { uint64_t to, at, nbytes; } fill_part;

enum { REGIONS = 512 };                  /* of one command: some drivers allocate as many on the way */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Records copies between two buffers, a command for many; all bytes from the first to the last count as touched. */
static void record_regions(recorder *to, const copy_part *parts, uint32_t n) {
    span read = {parts->from, UINT64_MAX, 0, 0}, written = {parts->to, UINT64_MAX, 0, 1};
    for (uint32_t i = 0; i < n; i++) {
        const copy_part *c = &parts[i];
        read.start = least(read.start, c->start);
        read.end = most(read.end, c->start + c->nbytes);
        written.start = least(written.start, c->at);
        written.end = most(written.end, c->at + c->nbytes);
    }
    order(to, (span[]){read, written}, 2);
    for (uint32_t first = 0; first < n; first += REGIONS) {
        copy_info regions[REGIONS];
        uint32_t m = n - first < REGIONS ? n - first : REGIONS;
        for (uint32_t i = 0; i < m; i++) {
            const copy_part *c = &parts[first + i];
            regions[i] = (copy_info){c->start, c->at, c->nbytes};
        }
        to->vk->copy(to->commands, parts->from, parts->to, m, regions);
    }
}

/* Parts of one operation touch different bytes: few go by with one look at what was touched before, many between two
 * buffers as one. */
static void record_copies(recorder *to, const copy_part *parts, uint32_t n) {
    uint32_t alike = 1;
    while (alike < n && parts[alike].from == parts->from && parts[alike].to == parts->to) alike++;
    if (n > SPANS / 2 && alike == n) {
        record_regions(to, parts, n);
        return;
    }
    for (uint32_t first = 0; first < n; first += SPANS / 2) {
        uint32_t m = n - first < SPANS / 2 ? n - first : SPANS / 2;
        span spans[SPANS];
        for (uint32_t i = 0; i < m; i++) {
            const copy_part *c = &parts[first + i];
            spans[2 * i] = (span){c->from, c->start, c->start + c->nbytes, 0};
            spans[2 * i + 1] = (span){c->to, c->at, c->at + c->nbytes, 1};
        }
        order(to, spans, 2 * m);
        for (uint32_t i = 0; i < m; i++) {
            const copy_part *c = &parts[first + i];
            copy_info region = {c->start, c->at, c->nbytes};
            to->vk->copy(to->commands, c->from, c->to, 1, &region);
        }
    }
}

static void record_fill(recorder *to, const fill_part *part, uint32_t word) {
    span touched = {part->to, part->at, part->at + part->nbytes, 1};
    order(to, &touched, 1);
    to->vk->fill(to->commands, part->to, part->at, part->nbytes, word);
}

#endif
