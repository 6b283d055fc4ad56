/* What Python calls: read by the C compiler, before all other parts, and by cffi, so there are no directives in it. */
typedef struct vkp_queue vkp_queue;
typedef struct vkp_group vkp_group;
typedef struct vkp_program vkp_program;
vkp_queue *vkp_queue_new(uint64_t device, uint64_t queue, uint64_t timeline, uint64_t submit, uint64_t wait,
                         uint64_t signal, uint64_t counter);
void vkp_queue_free(vkp_queue *);
void vkp_queue_habits(vkp_queue *, int naps, int skips);
void vkp_queue_pair(vkp_queue *, vkp_queue *);
const uint64_t *vkp_queue_last_word(vkp_queue *);
int32_t vkp_submit(vkp_queue *, uint64_t command, uint64_t *value);
int32_t vkp_wait(vkp_queue **, const uint64_t *values, uint32_t n, uint64_t timeout_ns, uint64_t spin_ns,
                 uint32_t *reached);
vkp_group *vkp_group_new(uint32_t n, vkp_queue **, uint32_t nslots);
void vkp_group_native(vkp_group *, uint32_t dst, uint32_t src, uint64_t semaphore);
void vkp_group_local(vkp_group *, uint32_t dst, uint64_t semaphore);
void vkp_group_slots(vkp_group *, uint64_t shared, const uint64_t *offsets, const uint64_t *sizes);
void vkp_group_mapped(vkp_group *, uint32_t rank, uint64_t address);
int vkp_group_start(vkp_group *, uint64_t spin_ns, uint64_t slice_ns);
void vkp_group_stop(vkp_group *);
void vkp_group_abort(vkp_group *);
void vkp_group_doubt(vkp_group *);
uint32_t vkp_group_number(vkp_group *);
int vkp_group_failed(vkp_group *, uint32_t *rank);
const int32_t *vkp_group_error_word(vkp_group *);
void vkp_group_stats(vkp_group *, uint64_t *out);
void vkp_group_free(vkp_group *);
vkp_program *vkp_program_new(vkp_group *, uint32_t nbatches, const uint32_t *rank, const uint64_t *commands,
                             const uint32_t *read_start, const uint32_t *reads, const uint32_t *write_start,
                             const uint32_t *writes, const uint64_t *gates, const uint64_t *gate_values);
void vkp_program_prelude(vkp_program *, uint32_t rank, uint64_t command);
void vkp_program_free(vkp_program *);
int32_t vkp_enqueue(vkp_program *, uint64_t *values, uint32_t *failed);

/* ---- roads between cards: _pump_peer.h ---- */

/* The words lie in the sender's and the receiver's memory, whose slots begin at `from` and `to`. */
typedef struct { uint64_t context, stream, raised, arrived, from, to; uint32_t sent; } vkp_road;
typedef struct { uint32_t src, dst, lane, first, npieces; } vkp_transfer;
typedef struct { uint64_t offset, nbytes; } vkp_piece;
void vkp_group_vendor(vkp_group *, const uint64_t *functions, int masks);
int vkp_group_road(vkp_group *, uint32_t src, uint32_t dst, uint32_t lane, const vkp_road *);
uint32_t vkp_group_sent(vkp_group *, uint32_t src, uint32_t dst, uint32_t lane);
int32_t vkp_group_status(vkp_group *);
int32_t vkp_program_transfers(vkp_program *, const uint8_t *opens, uint32_t n, const vkp_transfer *, uint32_t npieces,
                              const vkp_piece *);

/* ---- queues without a device: _pump_hub.h ---- */

typedef struct vkp_hub vkp_hub;
vkp_hub *vkp_hub_new(uint32_t n);
void vkp_hub_addresses(vkp_hub *, uint32_t queue, uint64_t *out);
void vkp_hub_tell(vkp_hub *, uint32_t queue, vkp_group *, uint32_t rank);
uint32_t vkp_hub_take(vkp_hub *, uint64_t *out, uint32_t most);
void vkp_hub_done(vkp_hub *, uint32_t queue, uint64_t value);
void vkp_hub_rest(vkp_hub *, uint64_t timeout_ns);
void vkp_yield(void);
void vkp_hub_halt(vkp_hub *);
void vkp_hub_stop(vkp_hub *);
void vkp_hub_empty(vkp_hub *);
void vkp_hub_free(vkp_hub *);

/* ---- gathering and recording operations: _pump_launch.h, _pump_graph.h ---- */

typedef struct vkp_stream vkp_stream;
/* Of a binding: the bytes that it covers, how far before the given address it begins, and what is done to `used` of them from
 * `low` before that address on. */
typedef struct { uint64_t nbytes, used; uint32_t back, low, kind; } vkp_binding;
/* Bytes of a VkBuffer of a VkDevice, and what is done to them (see _pump_ledger.h). */
typedef struct { uint64_t device, buffer, start, end, kind; } vkp_touch;
/* Counts what is done to memory; how many programs' groups there are; how many ranges are lost. Read without a lock. */
typedef struct { uint64_t seq; uint32_t active, lost; } vkp_clock;
const vkp_clock *vkp_ledger_clock(void);
int32_t vkp_program_touch(vkp_program *, uint32_t n, const vkp_touch *);
uint32_t vkp_ledger_lost(uint32_t n, const vkp_touch *);
uint32_t vkp_ledger_cause(void);
int32_t vkp_ledger_note(uint32_t n, const vkp_touch *);
void vkp_ledger_forget(uint64_t device);
void vkp_ledger_mend(uint32_t n, const vkp_touch *, uint64_t seq);
/* A dispatch that lacks nothing but addresses, and push constants where it has none of its own. One that `asks` does not
 * run as long as a failure has spoiled anything. */
typedef struct {
    uint64_t pipeline, layout, set_layout;
    uint32_t name, pushes, push_nbytes, bindings, groups[3], cost_ns, asks;
    uint8_t push[128];
    vkp_binding binding[];
} vkp_plan;
vkp_stream *vkp_stream_new(vkp_queue *, uint32_t family, int barriers, uint32_t rate, uint64_t wait_idle, const uint64_t *functions);
int32_t vkp_launch(vkp_stream *, const vkp_plan *, const char *addresses, const char *push);
int32_t vkp_copy(vkp_stream *, uint32_t name, uint32_t n, const char *parts);
int32_t vkp_fill(vkp_stream *, uint32_t name, uint32_t n, const char *parts, uint32_t word);
const uint64_t *vkp_queue_submitted_word(vkp_queue *);
int vkp_queue_sending(vkp_queue *);
int32_t vkp_stream_flush(vkp_stream *);
uint64_t vkp_stream_oldest(vkp_stream *);
uint32_t vkp_stream_unsent(vkp_stream *, uint32_t *names, uint32_t most, uint32_t *lost, uint32_t *failed);
void vkp_stream_stats(vkp_stream *, uint64_t *out);
void vkp_stream_refuse(vkp_stream *);
void vkp_stream_close(vkp_stream *, int leak);
void vkp_stream_free(vkp_stream *);
int32_t vkp_queue_idle(vkp_queue *, uint64_t wait_idle);
void vkp_stream_capture(vkp_stream *, int captures);
/* A trace: `stamps` has a row for each operation, with the queries around it, UINT32_MAX where it has none of its own; `sent`
 * one for each submission of gathered ones. Times are those of the host's monotonic clock, in ns. Where operations follow
 * each other in a command buffer, the end of one is the begin of the next. `purse` pays for timestamps, of which each
 * costs `price`, both in ns; a share of the time that passes goes into it, counted at `looked`. */
typedef struct { uint64_t at; uint32_t name, begin, end; } vkp_stamp;
typedef struct { uint64_t begun, ended, operations; } vkp_sent;
typedef struct {
    uint64_t pool, write, price, purse, looked;
    uint32_t room, used, queries, dropped, sent_room, sent_used;
    vkp_stamp *stamps;
    vkp_sent *sent;
} vkp_trace;
void vkp_stream_trace(vkp_stream *, vkp_trace *);
typedef struct vkp_recording vkp_recording;
vkp_recording *vkp_recording_new(vkp_stream *, int32_t *result);
int32_t vkp_recording_begin(vkp_recording *, uint64_t *commands);
int32_t vkp_recording_end(vkp_recording *);
void vkp_recording_strange(vkp_recording *);
int32_t vkp_recording_launch(vkp_recording *, const vkp_plan *, const char *addresses, const char *push);
int32_t vkp_recording_copy(vkp_recording *, uint32_t name, uint32_t n, const char *parts);
int32_t vkp_recording_fill(vkp_recording *, uint32_t name, uint32_t n, const char *parts, uint32_t word);
void vkp_recording_stats(vkp_recording *, uint64_t *out);
void vkp_recording_free(vkp_recording *);
