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
#define MGQ_ABI_VERSION 4

/* Values name safetensors' types. */
typedef enum mgq_type {
  MGQ_F64, MGQ_F32, MGQ_F16, MGQ_BF16,
  MGQ_I64, MGQ_I32, MGQ_I16, MGQ_I8,
  MGQ_U64, MGQ_U32, MGQ_U16, MGQ_U8,
  MGQ_BOOL
} mgq_type;

typedef struct mgq_tensor {
  mgq_type type;
  int32_t rank;
  const int64_t *shape;
  int64_t bytes;
} mgq_tensor;

/* Where a kernel's argument lives. */
typedef enum mgq_space {
  MGQ_SPACE_ARENA, /* arena + offset: everything the plan has placed */
  MGQ_SPACE_WEIGHT /* the mapped bytes of parameter `index`, read only */
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
  const char *name;      /* layer function, for traces and errors */
  const mgq_ref *args;
  int32_t arg_count;
  int32_t layer;         /* index into mgq_program.layers, -1: none */
  int64_t scratch_offset; /* in the arena */
  int64_t scratch_bytes;
} mgq_call;

/* A straight list of calls: what one op of the schedule runs. */
typedef struct mgq_sequence {
  const mgq_call *calls;
  int32_t call_count;
} mgq_sequence;

/* A file that holds parameters, as the compiler saw it. New values of the same
 * parameters are welcome; another length, or other bytes between them (the
 * graph), mean that the program is out of date. */
typedef struct mgq_file {
  const char *name;        /* relative to the folder of weights */
  int64_t bytes;           /* -1: it was absent */
  int32_t has_graph;       /* 1: it is the model file */
  uint64_t graph_hash;     /* mgq_hash of its bytes outside the parameters */
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
  const char *name;        /* canonical name */
  mgq_tensor stored;       /* as in the file and in kernels */
  const char *file;        /* relative to the folder of weights */
  int64_t file_offset;     /* bytes */
  int32_t trainable;       /* 0 or 1 */
  /* Canonical layout = stored transposed by this permutation; null: the same. */
  const int64_t *canonical_permutation;
  /* In the arena, or -1. Trainable: f32 value, gradient accumulator (summed
   * over micro-batches), Adam's momentum and variance. Frozen: value_offset
   * is set where the file's bytes are not aligned and are copied at load. */
  int64_t value_offset;
  int64_t grad_offset;
  int64_t momentum_offset;
  int64_t variance_offset;
} mgq_param;

/* Where backward of one micro-batch leaves a gradient, and where it is summed
 * over micro-batches. One entry per use of the parameter, in program order,
 * each with an accumulator of its own. The gradient is there only until the
 * next call: it is added when call number `after` of the backward sequence has
 * run. The first use's accumulator is the parameter's
 * grad_offset, to which the others are added in this order before the
 * optimizer. So no bit depends on which stage has which use. */
typedef struct mgq_grad {
  int32_t param;
  int32_t after;           /* index of a call of `backward` */
  int64_t offset;          /* arena; f32, the stored layout */
  int64_t accumulator;     /* arena; f32, the stored layout */
} mgq_grad;

typedef struct mgq_input {
  const char *name;
  mgq_tensor tensor;       /* of one micro-batch */
  int64_t offset;          /* arena */
  /* Values must lie in [0, limit) or equal ignore_value; limit 0: no check.
   * Set for integer inputs that only index tables (token ids, labels). */
  int64_t limit;
  int32_t has_ignore_value;
  int64_t ignore_value;
} mgq_input;

typedef struct mgq_output {
  const char *name;
  mgq_tensor tensor;
  int64_t offset;          /* arena, after the forward sequence */
} mgq_output;

typedef enum mgq_op_kind {
  MGQ_OP_FORWARD,          /* runs `forward` of the micro-batch */
  MGQ_OP_BACKWARD,         /* runs `backward`, adds gradients */
  MGQ_OP_OPTIMIZER
} mgq_op_kind;

/* One entry of the rank's program of a step. */
typedef struct mgq_op {
  int32_t kind;
  int32_t chunk;
  int32_t micro_batch;
  int32_t slot;
} mgq_op;

/* Key and value, in the model's metadata. */
typedef struct mgq_pair {
  const char *key;
  const char *value;
} mgq_pair;

typedef struct mgq_layer {
  const char *name;
  int64_t forward_flops;
  int64_t backward_flops;
} mgq_layer;

/* Bytes of the arena, by what they hold; they add up to arena_bytes. */
typedef struct mgq_memory {
  int64_t weights;         /* trainable values, copied or packed frozen ones */
  int64_t gradients;
  int64_t optimizer;
  int64_t inputs;
  int64_t activations;     /* values and residuals of a micro-batch */
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

typedef struct mgq_program {
  int32_t abi_version;
  const char *compiler_version;
  const char *fingerprint;  /* of model, parameters and options: a checkpoint
                               of another model is refused by it */
  const char *model_path;   /* as given to the compiler, made absolute */

  const mgq_pair *metadata;
  int32_t metadata_count;
  const mgq_param *params;
  int32_t param_count;
  const mgq_file *files;    /* those of the params */
  int32_t file_count;
  const mgq_input *inputs;
  int32_t input_count;
  const mgq_output *outputs; /* of the forward sequence; [0] is the loss */
  int32_t output_count;
  const mgq_grad *grads;
  int32_t grad_count;
  const mgq_layer *layers;
  int32_t layer_count;

  /* Run once after the weights are in place, and again after each optimizer
   * step for what depends on trainable ones (packing). */
  mgq_sequence prepare_frozen;
  mgq_sequence prepare_trainable;
  /* One micro-batch. forward writes the loss sum (f32) and, where the loss is
   * a recognised cross-entropy, the sum of label weights (f32). */
  mgq_sequence forward;
  mgq_sequence backward;
  /* Forward without residuals, and all graph outputs: evaluation. */
  mgq_sequence evaluate;
  /* Labels only: writes count_offset. Empty where the loss is not recognised. */
  mgq_sequence count;

  int32_t loss_is_sum;      /* 1: loss = sum / count; 0: a mean, no count */
  int64_t loss_sum_offset;  /* f32, arena: written by forward */
  int64_t count_offset;     /* f32, arena: sum of label weights */
  int64_t seed_offset;      /* f32, arena: gradient of the loss sum (or of the
                               loss), read by backward */

  const mgq_op *ops;        /* a step */
  int32_t op_count;
  int32_t micro_batches;    /* per step and replica */
  int32_t micro_batch_size; /* samples */

  int64_t arena_bytes;
  mgq_memory memory;
  int64_t step_flops;

  mgq_adamw_fn adamw;
  mgq_sq_norm_fn sq_norm;
  mgq_accumulate_fn accumulate;
} mgq_program;

extern const mgq_program mgq_program_table;

/*===--- Called by generated code -------------------------------------------===*/

/* Runs body(context, i) for i in [0, count) on the rank's compute threads and
 * returns when all are done. Which thread runs which i changes no result. */
void mgq_parallel_for(void (*body)(void *context, int64_t index), void *context,
                      int64_t count);

/* Reports an index outside [0, size). The step stops with a message that names
 * `what` (an ONNX node); generated code goes on with a clamped index. */
void mgq_index_error(const char *what, int64_t index, int64_t size);

#ifdef __cplusplus
}
#endif

#endif /* MGQ_RUNTIME_INCLUDE_RT_H */
