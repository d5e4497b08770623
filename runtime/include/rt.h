/*===- rt.h - What generated programs and the runtime share -----------------===
 *
 * An executable is: one generated object (kernels, and `mgq_program`, the
 * constant tables below) linked with the runtime, which has main(). The tables
 * hold the plan: what to run in which order and where everything lives. The
 * runtime reads them; it decides nothing about memory or order.
 *
 * C11 and C++17. No exception crosses this line. All sizes are bytes, all
 * tensors dense and row-major.
 *===----------------------------------------------------------------------===*/
#ifndef MGQ_RUNTIME_INCLUDE_RT_H
#define MGQ_RUNTIME_INCLUDE_RT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a struct below changes; runtime and object must agree. */
#define MGQ_ABI_VERSION 14

/* Values name safetensors' types. */
typedef enum mgq_type {
  MGQ_F64,
  MGQ_F32,
  MGQ_F16,
  MGQ_BF16,
  MGQ_I64,
  MGQ_I32,
  MGQ_I16,
  MGQ_I8,
  MGQ_U64,
  MGQ_U32,
  MGQ_U16,
  MGQ_U8,
  MGQ_BOOL
} mgq_type;

typedef struct mgq_tensor {
  mgq_type type;
  int32_t rank;
  const int64_t *shape;
  int64_t bytes;
} mgq_tensor;

/* Where something lives. */
typedef enum mgq_space {
  MGQ_SPACE_ARENA,  /* arena + offset */
  MGQ_SPACE_WEIGHT, /* the mapped bytes of parameter `index`, read only */
  MGQ_SPACE_SLOT,   /* slot of the running micro-batch in local chunk `index`:
                       arena + slots_offset + slot * slot_bytes + offset */
  MGQ_SPACE_NONE    /* nowhere on this rank */
} mgq_space;

typedef struct mgq_ref {
  int32_t space;
  int32_t index;
  int64_t offset;
} mgq_ref;

/* A generated layer function. `args`: operands, then results (written).
 * `scratch`: 64-byte aligned, at least the call's scratch_bytes. */
typedef void (*mgq_kernel)(void *const *args, void *scratch);

typedef struct mgq_call {
  mgq_kernel kernel;
  const char *name; /* layer function, for traces and errors */
  const mgq_ref *args;
  int32_t arg_count;
  int32_t layer;          /* index into mgq_program.layers, -1: none */
  int64_t scratch_offset; /* in the arena */
  int64_t scratch_bytes;
  /* Takes the kernel's place from the layer's `late_from` on; null: none. */
  mgq_kernel late;
} mgq_call;

/* Copies an input of the micro-batch to `place` before the calls. */
typedef struct mgq_load {
  int32_t input; /* index into mgq_program.inputs */
  mgq_ref place;
} mgq_load;

/* Loads, then a straight list of calls: what one op of the schedule runs. */
typedef struct mgq_sequence {
  const mgq_load *loads;
  int32_t load_count;
  const mgq_call *calls;
  int32_t call_count;
} mgq_sequence;

/* A file that holds parameters, as the compiler saw it. New values of the same
 * parameters are welcome; another length, or other bytes between them (the
 * graph), mean that the program is out of date. */
typedef struct mgq_file {
  const char *name;    /* relative to the folder of weights */
  int64_t bytes;       /* -1: it was absent */
  int32_t has_graph;   /* 1: it is the model file */
  uint64_t graph_hash; /* mgq_hash of its bytes outside the parameters */
} mgq_file;

/* FNV-1a: goes on from `hash`, which starts as MGQ_HASH_START. */
#define MGQ_HASH_START 0xcbf29ce484222325u
static inline uint64_t mgq_hash(uint64_t hash, const void *data, int64_t n) {
  const unsigned char *bytes = (const unsigned char *)data;
  int64_t i;
  for (i = 0; i < n; ++i)
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

typedef struct mgq_param {
  const char *name;    /* canonical name */
  mgq_tensor stored;   /* as in the file; kernels read trainable ones as f32 */
  const char *file;    /* relative to the folder of weights */
  int64_t file_offset; /* bytes */
  int32_t trainable;   /* 0 or 1 */
  int32_t owner;       /* trainable: the stage with its optimizer state */
  /* Canonical layout = stored transposed by this permutation; null: the same.
   */
  const int64_t *canonical_permutation;
} mgq_param;

/* A parameter that a rank uses. Offsets in the arena, or -1. Trainable: f32
 * value; the owner also has gradient (summed over micro-batches, uses and
 * replicas), Adam's momentum and variance. A user that does not own it gets new
 * values from the owner. Frozen: value_offset is set where the bytes are copied
 * at load: the file's are not aligned, or the device cannot read them. */
typedef struct mgq_place {
  int32_t param;
  /* Of a frozen one's copy, -1: as stored. f32 and f16 may become bf16, each
   * value rounded once, to nearest even. A parameter that is read in two types
   * has two places. */
  int32_t type;
  int64_t value_offset;
  int64_t grad_offset;
  int64_t momentum_offset;
  int64_t variance_offset;
} mgq_place;

/* Where a chunk leaves a gradient, and where it is summed over micro-batches.
 * The gradient is there only until the next call: it is added when call number
 * `after` of the backward (or weight) sequence has run. */
typedef struct mgq_grad {
  int32_t param;
  int32_t of_weight;   /* 0: after a call of `backward`; 1: of `weight` */
  int32_t after;       /* index of that call */
  mgq_ref place;       /* f32, the stored layout */
  int64_t accumulator; /* arena; f32, the stored layout */
} mgq_grad;

/* Accumulators of the parameters that a rank owns: one per use, in program
 * order of the forward pass, those of other ranks included, which send theirs.
 * The first is the parameter's grad_offset; MGQ_OP_COMBINE adds the others to
 * it in this order. So no bit depends on which stage has which use. */
typedef struct mgq_use {
  int32_t param;
  int64_t accumulator; /* arena */
} mgq_use;

/* Inputs with this prefix and a number K are not data but keys of dropout ops,
 * i64 [4], made by the runtime: seed, step (from 0), number of the first sample
 * of the micro-batch in the step (micro-batches of replica 0 first), K. In an
 * evaluation K is -1: nothing is dropped. */
#define MGQ_RANDOM_INPUT "mgq.random."

typedef struct mgq_input {
  const char *name;
  mgq_tensor tensor; /* of one micro-batch */
  /* Values must lie in [0, limit) or equal ignore_value; limit 0: no check.
   * Set for integer inputs that only index tables (token ids, labels). */
  int64_t limit;
  int32_t has_ignore_value;
  int64_t ignore_value;
} mgq_input;

typedef struct mgq_output {
  const char *name;
  mgq_tensor tensor;
} mgq_output;

/* Where a graph output is on this rank after the evaluate ops. */
typedef struct mgq_output_place {
  int32_t output;
  mgq_ref place;
} mgq_output_place;

/* A result of a forward call that a cache of the frozen prefix keeps. */
typedef struct mgq_kept {
  int32_t call; /* of the forward sequence */
  int32_t arg;  /* of that call */
  int64_t bytes;
} mgq_kept;

/* Consecutive layers of the model that run together on a rank. */
typedef struct mgq_chunk {
  int32_t index; /* among all chunks of the model, in its order */
  int32_t slot_count;
  int64_t slots_offset; /* arena: slot_count times slot_bytes */
  int64_t slot_bytes;
  mgq_sequence forward;
  mgq_sequence backward; /* data gradients, and weight gradients unless split */
  mgq_sequence weight;   /* weight gradients that were split off */
  mgq_sequence evaluate; /* forward without residuals, all graph outputs */
  const mgq_grad *grads;
  int32_t grad_count;
  /* Calls of `forward`, ascending, that are skipped for a record whose kept
   * values are known, and these values, in the order of the calls. */
  const int32_t *frozen_calls;
  int32_t frozen_call_count;
  const mgq_kept *kept;
  int32_t kept_count;
} mgq_chunk;

typedef enum mgq_op_kind {
  MGQ_OP_FORWARD,    /* runs `forward` of a chunk for a micro-batch */
  MGQ_OP_BACKWARD,   /* runs `backward`, adds its gradients */
  MGQ_OP_WEIGHT,     /* runs `weight`, adds its gradients */
  MGQ_OP_EVALUATE,   /* runs `evaluate` */
  MGQ_OP_SEND,       /* begins to send `bytes` at `place` to stage `peer` */
  MGQ_OP_RECEIVE,    /* lets `bytes` from stage `peer` arrive at `place` */
  MGQ_OP_COMBINE,    /* adds the uses of owned parameters */
  MGQ_OP_ALL_REDUCE, /* begins to sum a bucket of gradients, `bytes` at `place`,
                        over replicas, in their order */
  MGQ_OP_ALL_GATHER, /* begins to fill `place` with the slices of a shard */
  MGQ_OP_OPTIMIZER
} mgq_op_kind;

typedef enum mgq_traffic {
  MGQ_TRAFFIC_ACTIVATION,
  MGQ_TRAFFIC_GRADIENT, /* of activations, and accumulators of tied parameters
                         */
  MGQ_TRAFFIC_PARAMETER /* new values of tied parameters */
} mgq_traffic;

/* How MGQ_OP_ALL_REDUCE sends gradients: see runtime/src/common/Compression.h.
 */
typedef enum mgq_compression {
  MGQ_COMPRESSION_NONE, /* f32 */
  MGQ_COMPRESSION_BF16,
  MGQ_COMPRESSION_SPARSE24,     /* 2 of 4 values, as bf16 */
  MGQ_COMPRESSION_SPARSE24_INT8 /* 2 of 4 values, as 8 bits with a scale */
} mgq_compression;

/* What lossy compression has not sent yet, f32, in the arena. Two of each: a
 * step reads one and writes the other, and counts only if it is not skipped. A
 * worker's lie as the owned gradients do; an owner's are those of its shards,
 * 256 values a block, one all_reduce after the other. */
typedef struct mgq_residuals {
  int64_t gradients; /* offset of the owned gradients */
  int64_t bytes;     /* of them */
  int64_t worker[2]; /* offsets; -1: nothing is compressed */
  int64_t owner[2];
  int64_t owner_bytes; /* of each */
} mgq_residuals;

/* One entry of a rank's program of a step. The rank executes them in order;
 * sends, receives and collectives are only begun, and are done at the latest
 * where a later op waits for them, or at the end of the program. */
typedef struct mgq_op {
  int32_t kind;
  int32_t chunk;       /* local index, -1: none */
  int32_t micro_batch; /* of this replica; -1: none */
  int32_t slot;        /* of the chunk, -1: none */
  /* Sends and receives. Both sides of a message have the same tag; a tag is
   * used once in a program. */
  int32_t peer; /* stage, of the same replica */
  int32_t tag;
  int32_t traffic;
  int32_t compression; /* of an all_reduce */
  mgq_ref place;
  int64_t bytes;
  /* Indices of earlier sends, receives, all_reduces and all_gathers that must
   * be done first. */
  const int32_t *waits;
  int32_t wait_count;
  /* 1: of the next step, unless there is none: forward of a frozen prefix, and
   * its messages. Before a step for which that has not been done these ops are
   * run first, in their order. */
  int32_t ahead;
  /* All_gathers: `bucket`; `room` is the rank's own slice.
   * All_reduces. The number among its kind in the program, the same on all
   * ranks that take part; room in the arena for what others send. It begins as
   * soon as call number `begins_after` of the backward or weight op of index
   * `begins_in` has run, and all_reduces that it waits for are done;
   * `begins_in` -1: at its place in the program. */
  int32_t bucket;
  int32_t begins_in;
  int32_t begins_after;
  mgq_ref room;
  int64_t room_bytes;
} mgq_op;

/* Frozen weights of a layer as kernels read them, spread over ranks: the stages
 * of a replica or, of one stage, the replicas. When the layer runs they are at
 * `buffer`, in the arena; member i keeps slice i of that at `slice`. `pack`
 * makes all of it; if it has no call, `copies` say what lies where. */
typedef struct mgq_shard {
  mgq_sequence pack;
  const mgq_place *copies;
  int32_t copy_count;
  int64_t buffer;
  int64_t slice;
  int64_t slice_bytes;
} mgq_shard;

/* Key and value, in the model's metadata. */
typedef struct mgq_pair {
  const char *key;
  const char *value;
} mgq_pair;

typedef struct mgq_layer {
  const char *name;
  int64_t forward_flops;
  int64_t backward_flops;
  /* Progressive precision: the step, from 0, from which on its calls run their
   * `late` kernels (bf16); 0 where they have none. */
  int64_t late_from;
} mgq_layer;

/* Bytes of the arena, by what they hold; they add up to arena_bytes. */
typedef struct mgq_memory {
  int64_t weights; /* trainable values, copied or packed frozen ones */
  int64_t gradients;
  int64_t optimizer;
  int64_t inputs;
  int64_t activations; /* slots of micro-batches in flight, and what lives in
                          one sequence only */
  int64_t scratch;
} mgq_memory;

/* Runs the update of n elements (multiple threads call it on disjoint parts).
 * `scalars`: the eight of nn.adamw, then epsilon. */
#define MGQ_ADAMW_SCALARS 9
typedef void (*mgq_adamw_fn)(float *parameter, const float *gradient,
                             float *momentum, float *variance,
                             const float *scalars, int64_t n);
/* Sum of squares of n elements, in f64. Called on blocks of at most
 * MGQ_NORM_BLOCK elements; the runtime adds the blocks in order. */
#define MGQ_NORM_BLOCK 4096
typedef double (*mgq_sq_norm_fn)(const float *values, int64_t n);
/* sum += values, n elements. */
typedef void (*mgq_accumulate_fn)(float *sum, const float *values, int64_t n);

/* Opens the accelerator on which the program's functions enqueue work, whose
 * addresses its arena has; null: functions run on the host. For the struct see
 * runtime/src/common/Accelerator.h. No exception leaves it. */
struct mgq_device_request;
typedef void (*mgq_open_device_fn)(struct mgq_device_request *request);

/* What one stage does. Ranks of the same stage in other replicas do the same
 * with other records: rank = replica * stages + stage. */
typedef struct mgq_rank {
  int32_t stage;
  const mgq_place *places; /* parameters that this rank uses */
  int32_t place_count;
  const mgq_use *uses;
  int32_t use_count;
  const mgq_chunk *chunks;
  int32_t chunk_count;

  /* Run once after the weights are in place, and again after each optimizer
   * step for what depends on trainable ones (packing). */
  mgq_sequence prepare_frozen;
  const mgq_shard *shards;
  int32_t shard_count;
  mgq_sequence prepare_trainable;
  /* Labels only: writes count_place. Empty where the loss is not recognised. */
  mgq_sequence count;
  mgq_ref count_place; /* f32: sum of label weights */

  /* On the rank of the loss, else MGQ_SPACE_NONE. f32. */
  mgq_ref loss; /* written by the forward sequence: sum, or mean */
  mgq_ref seed; /* gradient of it, read by the backward and weight sequences */
  mgq_ref evaluate_loss; /* written by the evaluate sequence */
  int32_t loss_chunk;    /* local index of the chunk, -1: not here */

  const mgq_output_place *outputs;
  int32_t output_count;

  const mgq_op *ops; /* a step */
  int32_t op_count;
  const mgq_op *evaluate_ops; /* one record */
  int32_t evaluate_op_count;

  mgq_residuals residuals;

  int64_t arena_bytes;
  mgq_memory memory;
  int64_t step_flops;
} mgq_rank;

typedef struct mgq_program {
  int32_t abi_version;
  const char *compiler_version;
  const char *fingerprint; /* of model and parameters: a checkpoint of another
                              model is refused by it. Stages, schedule and
                              micro-batches may differ */
  const char *plan_hash;   /* of everything: ranks must agree */
  const char *model_path;  /* as given to the compiler, made absolute */
  const char *plugin_path; /* folder of the transport plugins */

  const mgq_pair *metadata;
  int32_t metadata_count;
  const mgq_param *params;
  int32_t param_count;
  const mgq_file *files; /* those of the params */
  int32_t file_count;
  const mgq_input *inputs;
  int32_t input_count;
  const mgq_output *outputs; /* of the model; [0] is the loss */
  int32_t output_count;
  const mgq_layer *layers;
  int32_t layer_count;

  /* What the cache of the frozen prefix depends on: a hash of its code, the
   * parameters and the inputs that it reads. Null code: there is none,
   * `prefix_fault` says why. */
  const char *prefix_code;
  const char *prefix_fault;
  const int32_t *prefix_params;
  int32_t prefix_param_count;
  const int32_t *prefix_inputs;
  int32_t prefix_input_count;

  const char *schedule;
  int32_t stages;
  int32_t replicas;
  int32_t micro_batches;    /* per step and replica */
  int32_t micro_batch_size; /* samples */
  /* 0: a record of the data is the input of one micro-batch; 1: it is one
   * sample, and micro_batch_size of them are put together. */
  int32_t by_sample;
  int32_t loss_is_sum; /* 1: loss = sum / count; 0: a mean, no count */
  /* Of the planner's simulation; negative: none was made. Bubble: the share of
   * a step, up to its last backward, in which ranks wait. */
  double predicted_step_seconds;
  double predicted_bubble;

  const mgq_rank *ranks; /* one per stage */

  /* Programs for other numbers of micro-batches, this one among them, in
   * ascending order; none: there is only this one. A run may change between
   * steps: they have the same samples a step, stages, replicas, parameters and
   * layers, and what outlives a step is at the same places. Activations are
   * not, so the arena is as large as the largest needs. */
  const struct mgq_program *const *variants;
  int32_t variant_count;

  mgq_adamw_fn adamw;
  mgq_sq_norm_fn sq_norm; /* null where a device is opened: it has its own */
  mgq_accumulate_fn accumulate;

  mgq_open_device_fn open_device;
} mgq_program;

/* The program that a run starts with. */
extern const mgq_program mgq_program_table;

/*===--- Called by generated code
 * -------------------------------------------===*/

/* Runs body(context, i) for i in [0, count) on the rank's compute threads and
 * returns when all are done. Which thread runs which i changes no result. */
void mgq_parallel_for(void (*body)(void *context, int64_t index), void *context,
                      int64_t count);

/* Reports an index outside [0, size). The step stops with a message that names
 * `what` (an ONNX node); generated code goes on with a clamped index. */
void mgq_index_error(const char *what, int64_t index, int64_t size);

/*===--- Transports
 * ---------------------------------------------------------===*/

/* When a message travelled, in seconds of CLOCK_MONOTONIC: from when it could
 * (both its sides had begun, its link was free) until it was there. `begin` <
 * 0: this end does not know. */
typedef struct mgq_span {
  double begin, end;
} mgq_span;

/* How ranks reach each other. One rank's end; its functions are called by the
 * rank's own thread only, except `abort`. Functions return 0, or nonzero after
 * a fault, whose text `error` has then: "rank 2: no sign of life for 300 s". */
typedef struct mgq_transport {
  void *self;
  const char *name; /* "threads", "mpi" */
  int32_t rank;
  int32_t size;
  /* Begins a message; `request` is for `wait`. The bytes must stay as they are
   * (or untouched, when receiving) until then. Messages between two ranks with
   * one tag arrive in the order in which they were sent. */
  int32_t (*send)(void *self, const void *data, int64_t bytes, int32_t peer,
                  int32_t tag, int64_t *request);
  int32_t (*receive)(void *self, void *data, int64_t bytes, int32_t peer,
                     int32_t tag, int64_t *request);
  /* Sleeps until the message is done. Request -1 does not sleep: it says that
   * this rank is alive, and fails if another has aborted. A rank that computes
   * for long calls it now and then; a wait fails if the rank waited for, or the
   * one that this waits for in turn, has made no call for the timeout. Request
   * -2 is the same as -1, but this rank waits for any of the others, beside the
   * transport: it fails if one of them, which waits for nobody, has made no
   * call for the timeout. `span` may be null. */
  int32_t (*wait)(void *self, int64_t request, mgq_span *span);
  /* The same without sleeping: a message is done, and its request is over, if
   * *done is 1; else it is 0. */
  int32_t (*test)(void *self, int64_t request, int32_t *done, mgq_span *span);
  /* Sleeps until `test` may have news of one of `count` > 0 requests, all of
   * which stay open. It may return early. */
  int32_t (*wait_any)(void *self, const int64_t *requests, int32_t count);
  /* All ranks: `all` gets size times bytes, in rank order. */
  int32_t (*all_gather)(void *self, const void *mine, int64_t bytes, void *all);
  const char *(*error)(void *self);
  /* Tells all ranks that this one ends with `message`; theirs fail with it. */
  void (*abort)(void *self, const char *message);
  /* All ranks, at the end of a run without a fault. */
  void (*close)(void *self);
} mgq_transport;

/* A plugin, libmgq_NAME.so, exports this. Opens the transport of the launcher
 * that started the process; null after a fault, whose text is in `error`. */
typedef mgq_transport *(*mgq_open_transport_fn)(int32_t abi_version,
                                                double timeout_seconds,
                                                char *error,
                                                int64_t error_bytes);
#define MGQ_OPEN_TRANSPORT "mgq_open_transport"

#ifdef __cplusplus
}
#endif

#endif /* MGQ_RUNTIME_INCLUDE_RT_H */
