/* What the pump's parts share: Vulkan's structs and functions as far as they are used, queues, groups, programs. */
#ifndef VKPAR_PUMP_TYPES_H
#define VKPAR_PUMP_TYPES_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "_pump_api.h"

enum { SUCCESS = 0, TIMEOUT = 2, OUT_OF_HOST_MEMORY = -1, UNKNOWN = -13 };
enum { STYPE_SUBMIT_INFO = 4, STYPE_TIMELINE_SUBMIT = 1000207003, STYPE_WAIT = 1000207004, STYPE_SIGNAL = 1000207005 };
enum { STAGE_ALL_COMMANDS = 0x00010000 };
enum { LANES = 2 };                      /* of a road, see LANES of schedule/carried.py */
enum { HISTOGRAM = 128 };                /* four buckets per power of two of a nanosecond, see bucket_ns in pump.py */
enum { WAITS = 2 };                      /* a batch has at most so many waits more than there are ranks */
/* A wait's first part, and how long is slept in it at a time: about 60 us with the kernel's own delay. */
static const uint64_t NAPPING_NS = 20000000ull;
#define NAP_NS 10000
static const uint32_t NO_SLOT = UINT32_MAX;

typedef struct {
    int32_t type; const void *next;
    uint32_t wait_count; const uint64_t *waits; const uint32_t *stages;
    uint32_t command_count; void *const *commands;
    uint32_t signal_count; const uint64_t *signals;
} submit_info;
typedef struct {
    int32_t type; const void *next;
    uint32_t wait_count; const uint64_t *wait_values;
    uint32_t signal_count; const uint64_t *signal_values;
} timeline_info;
typedef struct {
    int32_t type; const void *next; uint32_t flags;
    uint32_t count; const uint64_t *semaphores; const uint64_t *values;
} wait_info;
typedef struct { int32_t type; const void *next; uint64_t semaphore; uint64_t value; } signal_info;

/* A submission of one command buffer that signals a value, and may wait for another: what its submit_info points to. */
typedef struct {
    timeline_info timeline;
    uint64_t wait, waited, value;
    uint32_t stage;
    void *command;
} one_submission;

typedef int32_t (*submit_fn)(void *, uint32_t, const submit_info *, uint64_t);
typedef int32_t (*wait_fn)(void *, const wait_info *, uint64_t);
typedef int32_t (*signal_fn)(void *, const signal_info *);
typedef int32_t (*counter_fn)(void *, uint64_t, uint64_t *);

/* What a vendor's library offers, see _pump_peer.h: contexts, and what streams do one after the other. */
typedef int32_t (*push_fn)(void *context);
typedef int32_t (*pop_fn)(void **context);
typedef int32_t (*word_fn)(void *stream, uint64_t address, uint32_t value, uint32_t flags);
typedef int32_t (*masked_fn)(void *stream, uint64_t address, uint32_t value, uint32_t flags, uint32_t mask);
typedef int32_t (*copy_fn)(uint64_t to, uint64_t from, size_t nbytes, void *stream);
typedef struct { push_fn push; pop_fn pop; word_fn wait; copy_fn copy; word_fn write; masked_fn masked; } vendor;

/* A batch that a queue keeps for a call with later ones: what its program or its stream had built, copied. */
enum { HOLDS = 16, HELD_RANKS = 8, HELD_WAITS = HELD_RANKS + WAITS };
typedef struct {
    submit_info submit;
    timeline_info timeline;
    uint64_t waits[HELD_WAITS], values[HELD_WAITS], signal, signalled;
    uint32_t stages[HELD_WAITS];
    void *commands[2];
    int waits_somewhere;                 /* it does, or one of its program on another queue */
} held_batch;

struct vkp_queue {
    void *device, *queue;
    uint64_t timeline, last;             /* last: the highest value that a submitted batch will signal; Python reads it
                                            without a lock; the open buffer's counts, too */
    uint64_t submitted;                  /* the same without that, and without what is held */
    uint64_t before;                     /* what that was before the last call to the driver */
    held_batch *held;                    /* room for two of each of HOLDS programs, or NULL, see _pump_hold.h */
    uint32_t nheld;
    struct vkp_stream *stream;           /* what gathers operations for it, or NULL */
    struct vkp_queue *sibling;           /* the device's other queue: each submission waits for all of it */
    uint64_t sibling_waited;
    struct vkp_group *sending;           /* whose thread submits what signals `promised` at the end, or NULL; the values */
    uint64_t promised;                   /* count in `last` already */
    uint64_t lost_after, lost_until;     /* values that a thread could not submit, because of `refused` */
    int32_t refused;
    int naps;                            /* the driver wakes blocked threads late */
    int skips;                           /* its timeline may skip values: validation layers before 1.3.296 stall in waits
                                            for those */
    uint64_t seen;                       /* a value that the timeline had */
    uint64_t awaited, since;             /* the value last waited for, and when that began */
    submit_fn submit; wait_fn wait; signal_fn signal; counter_fn counter;
};

/* dst's entry waits until src's timeline has value and then, unless slot is NO_SLOT, until that slot was copied. */
typedef struct { uint64_t value, entry; uint32_t src, dst, slot; } need;

typedef struct {
    struct vkp_group *group;
    uint32_t rank;
    pthread_t thread;
    int running;
    pthread_cond_t wake;
    need *needs;                         /* ring: needs[head % capacity] .. needs[tail % capacity] */
    uint64_t head, tail, capacity;
    struct hub_queue *teller;            /* says itself that its timeline has moved, in place of the thread; or NULL */
    int delivers, moved;                 /* of such a one: somebody delivers; there may be more to deliver */
} waiter;

typedef struct {
    uint64_t semaphore;                  /* the destination's own timeline, signalled by the host alone */
    uint32_t *missing;                   /* ring: sources that entry i still waits for */
    uint64_t done, tail, capacity;       /* entries below done are signalled; entry i signals value i + 1 */
    int signals;                         /* a thread signals to it, and takes what gets ready meanwhile, too */
} local;

typedef struct {
    pthread_t thread;
    int running, parked, ends;
    pthread_mutex_t lock;
    pthread_cond_t wake, sent;
    struct vkp_program *program;         /* what it is to submit the rest of; NULL: nothing, and `result` is there */
    int32_t result;
} sender;

/* What a group does with a rank's device. */
enum { WAIT_FAILED, SIGNAL_FAILED, SUBMIT_FAILED, STREAM_WAIT, STREAM_COPY, STREAM_WRITE };

struct vkp_group {
    uint32_t n, nslots;
    vkp_queue **queues;                  /* NULL: was freed */
    uint64_t *native;                    /* [dst * n + src]: src's timeline on dst's device, 0 where bridged */
    uint64_t *waited;                    /* [dst * n + src]: highest value of src that dst's queue waits for */
    uint32_t *writer; uint64_t *written; /* per slot: last writer and its value */
    uint64_t *read;                      /* [slot * n + rank]: value of rank's last read of the slot's content */
    uint64_t shared, *mirror;            /* host addresses: the memory that ranks share; a rank's own instead, or 0 */
    uint64_t *offset, *size;             /* per slot, in bytes; the same in every such memory */
    uint8_t *fetched;                    /* [slot * (n + 1) + memory]: a parked need copies the slot's content there,
                                            memory being a mapped rank, or n for the shared one */
    local *locals;
    waiter *waiters;
    sender sender;
    uint8_t *sends;                      /* per rank: its queue's `sending` is the group; others may be gone */
    struct vkp_group *next;              /* in the ledger, under its `number` */
    uint32_t number;
    int noted, settled;                  /* `reached` is there; what a failure has spoiled was found */
    uint64_t *reached;                   /* per rank: its timeline when the group was aborted */
    uint32_t culprit;                    /* the rank whose device the error is from */
    int failed;                          /* what failed there */
    vendor vendor;
    vkp_road *roads;                     /* [(src * n + dst) * LANES + lane]; NULL: none */
    int32_t status;                      /* of the vendor's call that failed */
    pthread_mutex_t lock;
    int stop, aborted;
    int32_t error;                       /* Python reads it without the lock */
    uint64_t spin_ns, slice_ns;          /* a bridge's wait for a value: what spins first, and the longest piece after */
    uint64_t bridges, spins, blocks, copies, copied_bytes, histogram[HISTOGRAM];
};

typedef struct { uint64_t value; uint32_t slot, rank; } late_read;

struct vkp_touches;

struct vkp_program {
    vkp_group *group;
    uint32_t nbatches;
    uint32_t *rank, *read_start, *reads, *write_start, *writes;
    void **commands;
    submit_info *submits;                /* by rank: what its device had gathered before, and its batches */
    one_submission *gathered;            /* by rank; no command: nothing was gathered */
    timeline_info *timelines;
    uint64_t *gates, *gate_values;       /* per batch: one more semaphore to wait for, or 0 */
    void **opening;                      /* [2 * rank]: what runs before the rank's first batch, or NULL, then that */
    uint64_t *waits, *wait_values, *signals, *signal_values, *required;
    uint32_t *stages, *first;            /* first[r]: where rank r's batches begin in timelines */
    need *needs;                         /* of the batch that is being built: what its rank's bridge is to wait for */
    uint32_t nneeds;
    struct vkp_touches *touches;         /* room for the ranks' values, then what it does to arrays; NULL: nothing */
    vkp_transfer *transfers;
    vkp_piece *pieces;
    uint32_t ntransfers, waiting;        /* how often the carrier has it */
    int held;                            /* how often it is held */
    uint8_t *opens;                      /* per batch: a new round of carried batches begins with it; NULL: none are */
    late_read *late;                     /* of the round that is being built */
    uint32_t nlate;
    int is_sent;                         /* a thread has it, and uses what is in here */
};

static int forked;                       /* this process is a child of the one that made the streams: no thread is here */
static pthread_mutex_t entry = PTHREAD_MUTEX_INITIALIZER; /* the lock of all submissions */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Blocks, but looks now and then for a while before that, where the driver wakes blocked threads late. A wait that goes
 * on with the next call (nobody waited for another value meanwhile) is not new: it blocks at once. */
static int32_t wait_one(vkp_queue *q, uint64_t value, uint64_t timeout) {
    static const struct timespec nap = {0, NAP_NS};
    uint64_t start = now_ns(), now = start, counter = 0;
    if (q->naps && __atomic_exchange_n(&q->awaited, value, __ATOMIC_RELAXED) != value)
        __atomic_store_n(&q->since, start, __ATOMIC_RELAXED);
    while (q->naps && now - start < timeout && now - __atomic_load_n(&q->since, __ATOMIC_RELAXED) < NAPPING_NS) {
        int32_t result = q->counter(q->device, q->timeline, &counter);
        if (result != SUCCESS || counter >= value) return result;
        nanosleep(&nap, NULL);
        now = now_ns();
    }
    wait_info info = {STYPE_WAIT, NULL, 0, 1, &q->timeline, &value};
    return q->wait(q->device, &info, now - start < timeout ? timeout - (now - start) : 0);
}

#endif
