/* The hot path without the interpreter: submit, enqueue a program of batches, bridge timelines, wait.
 *
 * Vulkan's functions arrive as pointers, so nothing is linked and no Vulkan header is needed. Every function that
 * submits, but for eager launches, is called under the process-wide enqueue lock that the Python side holds; all take the
 * lock of _pump_frames.h.
 */
#include "_pump_bridge.h"
#include "_pump_hold.h"
#include "_pump_send.h"
#include "_pump_graph.h"
#include "_pump_hub.h"
#include "_pump_launch.h"
#include "_pump_peer.h"
#include "_pump_program.h"
#include "_pump_types.h"

/* ---- queues ---- */

vkp_queue *vkp_queue_new(uint64_t device, uint64_t queue, uint64_t timeline, uint64_t submit, uint64_t wait,
                         uint64_t signal, uint64_t counter) {
    vkp_queue *q = calloc(1, sizeof *q);
    if (!q) return NULL;
    q->device = (void *)(uintptr_t)device;
    q->queue = (void *)(uintptr_t)queue;
    q->timeline = timeline;
    q->submit = (submit_fn)(uintptr_t)submit;
    q->wait = (wait_fn)(uintptr_t)wait;
    q->signal = (signal_fn)(uintptr_t)signal;
    q->counter = (counter_fn)(uintptr_t)counter;
    return q;
}

void vkp_queue_free(vkp_queue *q) {
    if (forked) return;
    pthread_mutex_lock(&entry);
    if (settle(q) != SUCCESS) drop_held(UNKNOWN);
    if (q->sibling) q->sibling->sibling = NULL;
    forget_queue(q);
    pthread_mutex_unlock(&entry);
    free(q->held);
    free(q);
}

void vkp_queue_habits(vkp_queue *q, int naps, int skips) {
    q->naps = naps;
    q->skips = skips;
}

void vkp_queue_pair(vkp_queue *a, vkp_queue *b) { a->sibling = b; b->sibling = a; }
const uint64_t *vkp_queue_last_word(vkp_queue *q) { return &q->last; }
const uint64_t *vkp_queue_submitted_word(vkp_queue *q) { return &q->submitted; }

/* Does a thread still submit what counts as the queue's last? What is held goes now, or is to be asked for again. */
int vkp_queue_sending(vkp_queue *q) {
    if (forked) return 0;
    pthread_mutex_lock(&entry);
    if (settle_held(q) == DEVICE_LOST) drop_held(DEVICE_LOST);
    int busy = q->nheld || is_sending(q);
    pthread_mutex_unlock(&entry);
    return busy;
}

static uint32_t add_sibling_wait(vkp_queue *q, uint64_t *waits, uint64_t *values, uint32_t count) {
    if (q->sibling && q->sibling->submitted > q->sibling_waited) {
        waits[count] = q->sibling->timeline;
        values[count++] = q->sibling->submitted;
        q->sibling_waited = q->sibling->submitted;
    }
    return count;
}

/* Returns the submission of a command buffer that signals `value`, the queue's next one. What it waits for counts as waited
 * for: who does not submit it sets sibling_waited back. */
static submit_info fill_one(one_submission *one, vkp_queue *q, void *command, uint64_t value) {
    uint32_t count = add_sibling_wait(q, &one->wait, &one->waited, 0);
    one->command = command;
    one->value = value;
    one->stage = STAGE_ALL_COMMANDS;
    one->timeline = (timeline_info){STYPE_TIMELINE_SUBMIT, NULL, count, &one->waited, 1, &one->value};
    return (submit_info){STYPE_SUBMIT_INFO, &one->timeline, count, &one->wait, &one->stage, 1, &one->command, 1,
                         &q->timeline};
}

/* Submits a command buffer that signals `value`, the queue's next one. */
static int32_t submit_one(vkp_queue *q, void *command, uint64_t value) {
    one_submission one;
    uint64_t before = q->sibling_waited;
    submit_info info = fill_one(&one, q, command, value);
    int32_t result = q->submit(q->queue, 1, &info, 0);
    if (result == SUCCESS) {
        set_submitted(q, value);
        set_last(q, value);
    } else {
        q->sibling_waited = before;
    }
    return result;
}

int32_t vkp_submit(vkp_queue *q, uint64_t command, uint64_t *value) {
    pthread_mutex_lock(&entry);
    int32_t result = flush_device(q);
    if (result == SUCCESS) {
        uint64_t next = q->last + 1;
        result = submit_one(q, (void *)(uintptr_t)command, next);
        if (result == SUCCESS) *value = next;
    }
    pthread_mutex_unlock(&entry);
    return result;
}

/* Submits what a wait for `value` would wait for in vain, unless a thread is about to; says why nothing will signal it. */
static int32_t flush_for(vkp_queue *q, uint64_t value) {
    int32_t refused = __atomic_load_n(&q->refused, __ATOMIC_ACQUIRE), result = SUCCESS;
    if (refused == SUCCESS && __atomic_load_n(&q->submitted, __ATOMIC_ACQUIRE) >= value) return SUCCESS;
    pthread_mutex_lock(&entry);
    if (!is_sending(q) || value > q->promised) {
        result = settle(q);
        if (result == SUCCESS) result = flush(q->stream);
    }
    if (value > q->lost_after && value <= q->lost_until) result = q->refused;
    pthread_mutex_unlock(&entry);
    return result;
}

/* Waits for values[i] on queues[i], all of them; *reached counts those that are there. Spins first, then blocks. */
int32_t vkp_wait(vkp_queue **queues, const uint64_t *values, uint32_t n, uint64_t timeout_ns, uint64_t spin_ns,
                 uint32_t *reached) {
    uint64_t start = now_ns();
    *reached = 0;
    for (uint32_t i = 0; i < n; i++) {
        int32_t result = flush_for(queues[i], values[i]);
        if (result != SUCCESS) return result;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t counter = 0, spent;
        *reached = i;
        do {
            int32_t result = queues[i]->counter(queues[i]->device, queues[i]->timeline, &counter);
            if (result != SUCCESS) return result;
            spent = now_ns() - start;
        } while (counter < values[i] && spent < spin_ns && spent < timeout_ns);
        if (counter > queues[i]->seen) queues[i]->seen = counter;
        if (counter >= values[i]) continue;
        int32_t result = wait_one(queues[i], values[i], spent < timeout_ns ? timeout_ns - spent : 0);
        if (result == TIMEOUT) {         /* meanwhile a thread may have failed to submit it */
            int32_t refused = flush_for(queues[i], values[i]);
            if (refused != SUCCESS) return refused;
        }
        if (result != SUCCESS) return result;
        if (values[i] > queues[i]->seen) queues[i]->seen = values[i];
    }
    *reached = n;
    return SUCCESS;
}

/* ---- groups ---- */

vkp_group *vkp_group_new(uint32_t n, vkp_queue **queues, uint32_t nslots) {
    vkp_group *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->n = n;
    g->nslots = nslots;
    g->queues = malloc(n * sizeof *g->queues);
    g->native = calloc((size_t)n * n, sizeof *g->native);
    g->waited = calloc((size_t)n * n, sizeof *g->waited);
    g->writer = calloc(nslots + 1, sizeof *g->writer);
    g->written = calloc(nslots + 1, sizeof *g->written);
    g->read = calloc((size_t)(nslots + 1) * n, sizeof *g->read);
    g->mirror = calloc(n, sizeof *g->mirror);
    g->offset = calloc(nslots + 1, sizeof *g->offset);
    g->size = calloc(nslots + 1, sizeof *g->size);
    g->fetched = calloc((size_t)(nslots + 1) * (n + 1), sizeof *g->fetched);
    g->locals = calloc(n, sizeof *g->locals);
    g->waiters = calloc(n, sizeof *g->waiters);
    g->sends = calloc(n, sizeof *g->sends);
    g->reached = calloc(n, sizeof *g->reached);
    pthread_mutex_init(&g->lock, NULL);
    make_sender(&g->sender);
    if (!g->queues || !g->native || !g->waited || !g->writer || !g->written || !g->read || !g->mirror || !g->offset ||
        !g->size || !g->fetched || !g->locals || !g->waiters || !g->sends || !g->reached) {
        vkp_group_free(g);
        return NULL;
    }
    memcpy(g->queues, queues, n * sizeof *queues);
    list_group(g);
    for (uint32_t r = 0; r < n; r++) {
        g->waiters[r].group = g;
        g->waiters[r].rank = r;
        pthread_cond_init(&g->waiters[r].wake, NULL);
    }
    return g;
}

void vkp_group_native(vkp_group *g, uint32_t dst, uint32_t src, uint64_t semaphore) {
    g->native[dst * g->n + src] = semaphore;
}

void vkp_group_local(vkp_group *g, uint32_t dst, uint64_t semaphore) { g->locals[dst].semaphore = semaphore; }

/* Where the slots lie in the memory that the ranks share, and in each mirror of it. */
void vkp_group_slots(vkp_group *g, uint64_t shared, const uint64_t *offsets, const uint64_t *sizes) {
    g->shared = shared;
    memcpy(g->offset, offsets, g->nslots * sizeof *offsets);
    memcpy(g->size, sizes, g->nslots * sizeof *sizes);
}

void vkp_group_mapped(vkp_group *g, uint32_t rank, uint64_t address) { g->mirror[rank] = address; }

/* Starts one waiter thread for every rank that some other rank reaches by a bridge and that does not tell itself.
 * Returns an errno. */
int vkp_group_start(vkp_group *g, uint64_t spin_ns, uint64_t slice_ns) {
    g->spin_ns = spin_ns;
    g->slice_ns = slice_ns;
    for (uint32_t src = 0; src < g->n; src++) {
        int bridged = 0;
        for (uint32_t dst = 0; dst < g->n; dst++) bridged |= dst != src && !g->native[dst * g->n + src];
        if (!bridged || g->waiters[src].teller) continue;
        int error = pthread_create(&g->waiters[src].thread, NULL, bridge, &g->waiters[src]);
        if (error) return error;
        g->waiters[src].running = 1;
    }
    return 0;
}

void vkp_group_stop(vkp_group *g) {
    unlist_group(g);
    pthread_mutex_lock(&g->lock);
    g->stop = 1;
    for (uint32_t r = 0; r < g->n; r++) pthread_cond_signal(&g->waiters[r].wake);
    pthread_mutex_unlock(&g->lock);
    for (uint32_t r = 0; r < g->n; r++) {
        if (g->waiters[r].running) pthread_join(g->waiters[r].thread, NULL);
        g->waiters[r].running = 0;
        if (g->waiters[r].teller) hub_part(g->waiters[r].teller);
        g->waiters[r].teller = NULL;
    }
    stop_sender(&g->sender);
}

/* Lets every parked batch run: its data is undefined, its queue drains. */
static void abort_group(vkp_group *g) {
    lock_group(g);
    note_reached(g);
    pthread_mutex_unlock(&g->lock);
    spoil(g);                            /* before anybody can see what then runs as done */
    lock_group(g);
    release(g);
    pthread_mutex_unlock(&g->lock);
}

void vkp_group_abort(vkp_group *g) { abort_group(g); }

/* Has an abort take all for lost that its programs wrote, as far as the ledger goes back, done or not. */
void vkp_group_doubt(vkp_group *g) {
    lock_group(g);
    memset(g->reached, 0, g->n * sizeof *g->reached);
    g->noted = 1;
    pthread_mutex_unlock(&g->lock);
}

/* Under which number the ledger has the group. */
uint32_t vkp_group_number(vkp_group *g) { return g->number; }

/* Of what the error word says: what failed, and on which rank's device. */
int vkp_group_failed(vkp_group *g, uint32_t *rank) {
    pthread_mutex_lock(&g->lock);
    int failed = g->failed;
    *rank = g->culprit;
    pthread_mutex_unlock(&g->lock);
    return failed;
}

/* What the vendor's library said where one of its calls failed, else 0. */
int32_t vkp_group_status(vkp_group *g) { return g->status; }

const int32_t *vkp_group_error_word(vkp_group *g) { return &g->error; }

/* out: bridges, spins, blocks, copies, copied bytes, the latency histogram, each rank's parked entries. */
void vkp_group_stats(vkp_group *g, uint64_t *out) {
    pthread_mutex_lock(&g->lock);
    *out++ = g->bridges;
    *out++ = __atomic_load_n(&g->spins, __ATOMIC_RELAXED);
    *out++ = __atomic_load_n(&g->blocks, __ATOMIC_RELAXED);
    *out++ = g->copies;
    *out++ = g->copied_bytes;
    memcpy(out, g->histogram, sizeof g->histogram);
    for (uint32_t r = 0; r < g->n; r++) out[HISTOGRAM + r] = g->locals[r].tail - g->locals[r].done;
    pthread_mutex_unlock(&g->lock);
}

void vkp_group_free(vkp_group *g) {
    if (!g) return;
    if (g->waiters && g->locals)
        for (uint32_t r = 0; r < g->n; r++) {
            free(g->waiters[r].needs);
            free(g->locals[r].missing);
            pthread_cond_destroy(&g->waiters[r].wake);
        }
    unlist_group(g);
    free_sender(&g->sender);
    pthread_mutex_lock(&entry);
    conclude(g);
    pthread_mutex_unlock(&entry);
    pthread_mutex_destroy(&g->lock);
    free(g->queues); free(g->native); free(g->waited); free(g->writer); free(g->written); free(g->read);
    free(g->mirror); free(g->offset); free(g->size); free(g->fetched); free(g->locals); free(g->waiters); free(g->sends);
    free(g->reached); free(g->roads);
    free(g);
}
