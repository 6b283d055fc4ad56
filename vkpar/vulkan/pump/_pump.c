/* The hot path without the interpreter: submit, enqueue a program of batches, bridge timelines, wait.
 *
 * Vulkan's functions arrive as pointers, so nothing is linked and no Vulkan header is needed. Every function that
 * submits, but for eager launches, is called under the process-wide enqueue lock that the Python side holds; all take the
 * lock of _pump_launch.h.
 */
#include "_pump_bridge.h"
#include "_pump_send.h"
#include "_pump_graph.h"
#include "_pump_launch.h"
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
    settle(q);
    if (q->sibling) q->sibling->sibling = NULL;
    pthread_mutex_unlock(&entry);
    free(q);
}

void vkp_queue_naps(vkp_queue *q, int naps) { q->naps = naps; }
void vkp_queue_pair(vkp_queue *a, vkp_queue *b) { a->sibling = b; b->sibling = a; }
const uint64_t *vkp_queue_last_word(vkp_queue *q) { return &q->last; }
const uint64_t *vkp_queue_submitted_word(vkp_queue *q) { return &q->submitted; }

/* Does a thread still submit what counts as the queue's last? */
int vkp_queue_sending(vkp_queue *q) {
    if (forked) return 0;
    pthread_mutex_lock(&entry);
    int busy = is_sending(q);
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

/* Submits a command buffer that signals `value`, the queue's next one. */
static int32_t submit_one(vkp_queue *q, void *command, uint64_t value) {
    uint64_t waits[1], values[1], before = q->sibling_waited;
    uint32_t stage = STAGE_ALL_COMMANDS;
    uint32_t count = add_sibling_wait(q, waits, values, 0);
    void *commands[1] = {command};
    timeline_info timeline = {STYPE_TIMELINE_SUBMIT, NULL, count, values, 1, &value};
    submit_info info = {STYPE_SUBMIT_INFO, &timeline, count, waits, &stage, 1, commands, 1, &q->timeline};
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
    if (!is_sending(q) || value > q->promised) result = flush(q->stream);
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
        if (counter >= values[i]) continue;
        int32_t result = wait_one(queues[i], values[i], spent < timeout_ns ? timeout_ns - spent : 0);
        if (result != SUCCESS) return result;
    }
    *reached = n;
    return SUCCESS;
}

/* ---- groups ---- */

void vkp_group_free(vkp_group *g);

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
    g->unsent = n;
    pthread_mutex_init(&g->lock, NULL);
    make_sender(&g->sender);
    if (!g->queues || !g->native || !g->waited || !g->writer || !g->written || !g->read || !g->mirror || !g->offset ||
        !g->size || !g->fetched || !g->locals || !g->waiters || !g->sends) {
        vkp_group_free(g);
        return NULL;
    }
    memcpy(g->queues, queues, n * sizeof *queues);
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

/* Starts one waiter thread for every rank that some other rank reaches by a bridge. Returns an errno. */
int vkp_group_start(vkp_group *g, uint64_t spin_ns) {
    g->spin_ns = spin_ns;
    for (uint32_t src = 0; src < g->n; src++) {
        int bridged = 0;
        for (uint32_t dst = 0; dst < g->n; dst++) bridged |= dst != src && !g->native[dst * g->n + src];
        if (!bridged) continue;
        int error = pthread_create(&g->waiters[src].thread, NULL, bridge, &g->waiters[src]);
        if (error) return error;
        g->waiters[src].running = 1;
    }
    return 0;
}

void vkp_group_stop(vkp_group *g) {
    pthread_mutex_lock(&g->lock);
    g->stop = 1;
    for (uint32_t r = 0; r < g->n; r++) pthread_cond_signal(&g->waiters[r].wake);
    pthread_mutex_unlock(&g->lock);
    for (uint32_t r = 0; r < g->n; r++) {
        if (g->waiters[r].running) pthread_join(g->waiters[r].thread, NULL);
        g->waiters[r].running = 0;
    }
    stop_sender(&g->sender);
}

/* Lets every parked batch run: its data is undefined, its queue drains. */
void vkp_group_abort(vkp_group *g) {
    lock_group(g);
    release(g);
    pthread_mutex_unlock(&g->lock);
}

/* The rank whose batches the group's thread could not submit, as the error word says why; else the number of ranks. */
uint32_t vkp_group_unsent(vkp_group *g) {
    pthread_mutex_lock(&g->lock);
    uint32_t rank = g->unsent;
    pthread_mutex_unlock(&g->lock);
    return rank;
}

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
    free_sender(&g->sender);
    pthread_mutex_lock(&entry);
    conclude(g);
    pthread_mutex_unlock(&entry);
    pthread_mutex_destroy(&g->lock);
    free(g->queues); free(g->native); free(g->waited); free(g->writer); free(g->written); free(g->read);
    free(g->mirror); free(g->offset); free(g->size); free(g->fetched); free(g->locals); free(g->waiters); free(g->sends);
    free(g);
}

/* ---- programs ---- */

void vkp_program_free(vkp_program *p) {
    if (!p) return;
    if (__atomic_load_n(&p->is_sent, __ATOMIC_ACQUIRE)) await_sender(p->group, p);
    free(p->rank); free(p->read_start); free(p->reads); free(p->write_start); free(p->writes); free(p->commands);
    free(p->gates); free(p->gate_values); free(p->submits); free(p->timelines); free(p->waits); free(p->wait_values);
    free(p->signals); free(p->signal_values); free(p->required); free(p->stages); free(p->first); free(p->needs);
    free(p->opening);
    free(p);
}

static void *copy_of(const void *source, size_t nbytes) {
    void *made = malloc(nbytes ? nbytes : 1);
    if (made) memcpy(made, source, nbytes);
    return made;
}

/* Batches in global order: batch i runs commands[i] on rank[i], reads slots reads[read_start[i]..read_start[i+1]]
 * and writes slots writes[write_start[i]..write_start[i+1]]. It waits for gate_values[i] on gates[i] too, unless 0. */
vkp_program *vkp_program_new(vkp_group *g, uint32_t nbatches, const uint32_t *rank, const uint64_t *commands,
                             const uint32_t *read_start, const uint32_t *reads, const uint32_t *write_start,
                             const uint32_t *writes, const uint64_t *gates, const uint64_t *gate_values) {
    vkp_program *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    size_t width = g->n + WAITS, waits = width * (nbatches ? nbatches : 1);
    p->group = g;
    p->nbatches = nbatches;
    p->rank = copy_of(rank, nbatches * sizeof *rank);
    p->read_start = copy_of(read_start, (nbatches + 1) * sizeof *read_start);
    p->reads = copy_of(reads, read_start[nbatches] * sizeof *reads);
    p->write_start = copy_of(write_start, (nbatches + 1) * sizeof *write_start);
    p->writes = copy_of(writes, write_start[nbatches] * sizeof *writes);
    p->commands = copy_of(commands, nbatches * sizeof *commands);
    p->gates = copy_of(gates, nbatches * sizeof *gates);
    p->gate_values = copy_of(gate_values, nbatches * sizeof *gate_values);
    p->submits = calloc(nbatches + 1, sizeof *p->submits);
    p->timelines = calloc(nbatches + 1, sizeof *p->timelines);
    p->waits = malloc(waits * sizeof *p->waits);
    p->wait_values = malloc(waits * sizeof *p->wait_values);
    p->signals = malloc((nbatches + 1) * sizeof *p->signals);
    p->signal_values = malloc((nbatches + 1) * sizeof *p->signal_values);
    p->required = calloc(g->n, sizeof *p->required);
    p->stages = malloc(width * sizeof *p->stages);
    p->first = calloc(g->n + 1, sizeof *p->first);
    p->needs = malloc((g->n + read_start[nbatches]) * sizeof *p->needs);
    p->opening = calloc(2 * g->n + 1, sizeof *p->opening);
    if (!p->rank || !p->read_start || !p->reads || !p->write_start || !p->writes || !p->commands || !p->gates ||
        !p->gate_values || !p->submits || !p->timelines || !p->waits || !p->wait_values || !p->signals ||
        !p->signal_values || !p->required || !p->stages || !p->first || !p->needs || !p->opening) {
        vkp_program_free(p);
        return NULL;
    }
    for (size_t i = 0; i < width; i++) p->stages[i] = STAGE_ALL_COMMANDS;
    for (uint32_t i = 0; i < nbatches; i++) p->first[rank[i] + 1]++;
    for (uint32_t r = 0; r < g->n; r++) p->first[r + 1] += p->first[r];
    return p;
}

/* Has the next submissions begin with `command` on `rank`, before its first batch in the same submission; 0: with none. */
void vkp_program_prelude(vkp_program *p, uint32_t rank, uint64_t command) {
    p->opening[2 * rank] = (void *)(uintptr_t)command;
}

static void require(vkp_program *p, uint32_t rank, uint32_t source, uint64_t value) {
    if (source != rank && value > p->required[source]) p->required[source] = value;
}

/* Notes a need where the slot's writer and its reader do not share memory, for every read: that the writer's timeline
 * has its value does not say that the bytes are here. The first reader in each memory has them copied; what the others
 * wait for comes after that in the writer's queue of needs. */
static int fetch(vkp_program *p, uint32_t rank, uint32_t slot) {
    vkp_group *g = p->group;
    uint32_t source = g->writer[slot];
    uint64_t value = g->written[slot], *waited = &g->waited[rank * g->n + source];
    if (!value || g->mirror[source] == g->mirror[rank]) return 0;
    uint8_t *fetched = &g->fetched[(size_t)slot * (g->n + 1) + (g->mirror[rank] ? rank : g->n)];
    p->needs[p->nneeds++] = (need){value, 0, source, rank, *fetched ? NO_SLOT : slot};
    *fetched = 1;
    if (value > *waited) *waited = value;
    return 1;
}

/* What batch i must wait for: the writers of what it reads, every reader and the writer of what it overwrites. */
static void collect(vkp_program *p, uint32_t i, uint64_t value) {
    vkp_group *g = p->group;
    uint32_t rank = p->rank[i];
    memset(p->required, 0, g->n * sizeof *p->required);
    p->nneeds = 0;
    for (uint32_t k = p->read_start[i]; k < p->read_start[i + 1]; k++) {
        uint32_t slot = p->reads[k];
        if (!fetch(p, rank, slot)) require(p, rank, g->writer[slot], g->written[slot]);
        g->read[slot * g->n + rank] = value;
    }
    for (uint32_t k = p->write_start[i]; k < p->write_start[i + 1]; k++) {
        uint32_t slot = p->writes[k];
        require(p, rank, g->writer[slot], g->written[slot]);
        for (uint32_t r = 0; r < g->n; r++) {
            require(p, rank, r, g->read[slot * g->n + r]);
            g->read[slot * g->n + r] = 0;
        }
        g->writer[slot] = rank;
        g->written[slot] = value;
        memset(&g->fetched[(size_t)slot * (g->n + 1)], 0, g->n + 1);
    }
}

/* Looks at the counter: a wait of no length takes several times as long. */
static int has_reached(vkp_queue *q, uint64_t value) {
    uint64_t now = 0;
    return q->counter(q->device, q->timeline, &now) == SUCCESS && now >= value;
}

static int32_t build_waits(vkp_program *p, uint32_t i, uint64_t *waits, uint64_t *values, uint32_t *count) {
    vkp_group *g = p->group;
    uint32_t n = g->n, rank = p->rank[i];
    *count = 0;
    for (uint32_t src = 0; src < n; src++) {
        uint64_t value = p->required[src], *waited = &g->waited[rank * n + src];
        if (value <= *waited) continue;
        *waited = value;
        if (g->native[rank * n + src]) {
            waits[*count] = g->native[rank * n + src];
            values[(*count)++] = value;
        } else if (value > g->queues[src]->submitted || !has_reached(g->queues[src], value)) {
            p->needs[p->nneeds++] = (need){value, 0, src, rank, NO_SLOT};
        }
    }
    if (p->nneeds) {
        waits[*count] = g->locals[rank].semaphore;
        int32_t result = park(g, rank, p->needs, p->nneeds, &values[(*count)++]);
        if (result != SUCCESS) return result;
    }
    if (p->gates[i]) {
        waits[*count] = p->gates[i];
        values[(*count)++] = p->gate_values[i];
    }
    *count = add_sibling_wait(g->queues[rank], waits, values, *count);
    return SUCCESS;
}

static int32_t build(vkp_program *p, uint64_t *next, uint32_t *fill) {
    vkp_group *g = p->group;
    size_t width = g->n + WAITS;
    for (uint32_t i = 0; i < p->nbatches; i++) {
        uint32_t rank = p->rank[i], at = fill[rank]++, count;
        uint64_t value = ++next[rank], *waits = p->waits + at * width, *values = p->wait_values + at * width;
        collect(p, i, value);
        int32_t result = build_waits(p, i, waits, values, &count);
        if (result != SUCCESS) return result;
        p->signals[at] = g->queues[rank]->timeline;
        p->signal_values[at] = value;
        p->timelines[at] = (timeline_info){STYPE_TIMELINE_SUBMIT, NULL, count, values, 1, &p->signal_values[at]};
        p->submits[at] = (submit_info){STYPE_SUBMIT_INFO, &p->timelines[at], count, waits, p->stages, 1,
                                       &p->commands[i], 1, &p->signals[at]};
        if (at == p->first[rank] && p->opening[2 * rank]) {
            p->opening[2 * rank + 1] = p->commands[i];
            p->submits[at].command_count = 2;
            p->submits[at].commands = &p->opening[2 * rank];
        }
    }
    return SUCCESS;
}

/* May what was built be submitted? An abort that comes later finds all its parked entries and releases them. */
static int32_t may_submit(vkp_group *g) {
    lock_group(g);
    int32_t result = refusal(g);
    pthread_mutex_unlock(&g->lock);
    return result;
}

static int32_t enqueue(vkp_program *p, uint64_t *values, uint32_t *failed) {
    vkp_group *g = p->group;
    uint64_t next[g->n], sibling_waited[g->n];
    uint32_t fill[g->n];
    int32_t result = SUCCESS;
    *failed = g->n;
    for (uint32_t r = 0; r < g->n && result == SUCCESS; r++) result = flush_device(g->queues[r]);
    for (uint32_t r = 0; r < g->n; r++) {
        next[r] = g->queues[r]->last;
        sibling_waited[r] = g->queues[r]->sibling_waited;
        fill[r] = p->first[r];
    }
    if (result == SUCCESS) result = build(p, next, fill);
    if (result == SUCCESS) result = may_submit(g);
    if (result == SUCCESS) result = submit_all(p, failed);
    if (result != SUCCESS) {
        /* What was not submitted has not waited for its device's other queue. The slot table counts it all the same,
         * and local timelines have entries for it: this group is of no more use, so let go of all that is parked. */
        for (uint32_t r = *failed < g->n ? *failed : 0; r < g->n; r++) g->queues[r]->sibling_waited = sibling_waited[r];
        vkp_group_abort(g);
    }
    for (uint32_t r = 0; r < g->n; r++) values[r] = g->queues[r]->last;
    return result;
}

/* Submits every batch; values[r] is then the last value of rank r's queue. On an error the group is aborted. Then
 * *failed is the rank whose submission failed, and values[r] says how far rank r's batches were submitted; or it is the
 * number of ranks where none was submitted. */
int32_t vkp_enqueue(vkp_program *p, uint64_t *values, uint32_t *failed) {
    pthread_mutex_lock(&entry);
    int32_t result = enqueue(p, values, failed);
    pthread_mutex_unlock(&entry);
    return result;
}
