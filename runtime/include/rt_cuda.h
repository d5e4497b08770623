/*===- rt_cuda.h - What the host code of a CUDA program calls
--------------===*\
|*
|* A layer function of a CUDA program has the kernel ABI of rt.h
|* (mgq_kernel: args, scratch), but its pointers are device addresses, all of
|* them (weights' too) multiples of 16, and it only enqueues work on the calling
|* thread's current stream. It calls the functions below; the runtime
|* (runtime/src/cuda) has them. Matrices of products may begin anywhere in such
|* a buffer. They return
|* nothing: the runtime keeps the first fault of a stream and reports it at the
|* next event.
|*
|* mgq_cuda_module_table describes the device code: one cubin for each
|* architecture, and PTX for later ones, with the same kernels in the same
order.
|*
\*===----------------------------------------------------------------------===*/
#ifndef MGQ_RUNTIME_INCLUDE_RT_CUDA_H
#define MGQ_RUNTIME_INCLUDE_RT_CUDA_H

#include "runtime/include/rt.h"
#include "runtime/include/rt_cudnn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever something below changes; runtime and object must agree. */
#define MGQ_CUDA_ABI_VERSION 4

/* Device code, as cuModuleLoadData takes it. A cubin runs on devices of the
 * same major version and this or a higher minor version; PTX on those of this
 * or any later version, for which the driver compiles it. */
typedef struct mgq_cuda_image {
  int32_t sm; /* 80, 86, 89, 90, ... */
  int32_t is_ptx;
  const void *data; /* PTX: a text that a zero byte ends */
  int64_t bytes;    /* without that one */
} mgq_cuda_image;

/* A kernel; its name is the same in every image. */
typedef struct mgq_cuda_kernel {
  const char *name;
  int32_t threads;     /* of a block, in every launch */
  int32_t param_count; /* that mgq_cuda_launch gets */
  /* 1: the kernel checks indices. The runtime passes one more parameter behind
   * the others: the device address of a mgq_cuda_check. */
  int32_t checks;
} mgq_cuda_kernel;

/* In device memory, one per layer function, zero at the start. The first check
 * that fails sets it; the runtime looks at it where it waits for the device
 * anyway. */
typedef struct mgq_cuda_check {
  int32_t failed; /* 0, or 1 + index into mgq_cuda_module.checks */
  int32_t unused;
  int64_t index; /* was outside [0, size) */
  int64_t size;
} mgq_cuda_check;

/* A block of compressed gradients: see runtime/src/common/Compression.h. */
typedef struct mgq_cuda_block {
  int64_t value;  /* the number of its first value, a multiple of 4 */
  int64_t byte;   /* of its first byte among all encoded ones */
  int32_t count;  /* of values, 1 to 256 */
  int32_t groups; /* of 4 values that are sent in part; 0: all are bf16 */
} mgq_cuda_block;

/* Kernels of the program's compression, generated, called by the runtime; each
 * enqueues on the current stream. They are about `count` blocks of a table in
 * device memory, whose encoded bytes lie from `to` or `from` on, a multiple of
 * 16; `first` is the first block's `byte`. All pointers are device addresses;
 * arrays of f32 begin at multiples of 16. The bytes are those of
 * runtime/src/common/Compression. */
typedef struct mgq_cuda_compression {
  /* x = values * factor + residual is encoded; what is lost of it becomes
   * new_residual. */
  void (*encode)(const mgq_cuda_block *blocks, int64_t count, int64_t first,
                 const float *values, float factor, const float *residual,
                 float *new_residual, void *to);
  /* Adds `piece_count` encoded pieces that lie `stride` bytes apart (a multiple
   * of 16), in their order, then the residual, which has 256 values a block;
   * encodes the sum, keeps what is lost, and decodes the rest into `values`. */
  void (*combine)(const mgq_cuda_block *blocks, int64_t count, int64_t first,
                  const void *pieces, int64_t stride, int64_t piece_count,
                  const float *residual, float *new_residual, void *to,
                  float *values);
  void (*decode)(const mgq_cuda_block *blocks, int64_t count, int64_t first,
                 const void *from, float *values);
} mgq_cuda_compression;

typedef struct mgq_cuda_module {
  int32_t abi_version;
  const mgq_cuda_image *images;
  int32_t image_count;
  const mgq_cuda_kernel *kernels;
  int32_t kernel_count;
  /* What failing checks name: ONNX nodes. */
  const char *const *checks;
  int32_t check_count;
  /* Null: the program's gradients are sent as they are. */
  const mgq_cuda_compression *compression;
} mgq_cuda_module;

extern const mgq_cuda_module mgq_cuda_module_table;

/*===--- Called by generated host code
 * --------------------------------------===*/

/* Enqueues a kernel on `blocks` blocks (one dimension). `params` has the
 * addresses of the parameters' values, as cuLaunchKernel takes them; they are
 * read before the call returns. */
void mgq_cuda_launch(int32_t kernel, int64_t blocks, void *const *params);

/* What a product does to its sums, in this order, before they are rounded. */
enum {
  MGQ_CUDA_ADD = 1,  /* adds a matrix, or one for each of the batch */
  MGQ_CUDA_BIAS = 2, /* adds a vector of n elements to each row */
  MGQ_CUDA_GELU = 4  /* GELU by its tanh approximation */
};

/* C[i] = epilogue(alpha op(A[i]) op(B[i])) for i in [0, batch), row-major:
 * op(A) is m x k, op(B) is k x n, C is m x n. Sums are in f32 (f64 for f64).
 * What is added has C's type; a matrix does not overlap C, a bias begins at a
 * multiple of 16 bytes. Tables of constants: the address of one may serve as
 * the key of what was chosen for it. */
typedef struct mgq_cuda_product {
  int32_t a_type, b_type, c_type; /* mgq_type; a_type == b_type: F32, BF16, F16
                                     or F64; c_type: F32, F64, BF16 or F16 */
  int32_t transpose_a;            /* 1: A is stored k x m */
  int32_t transpose_b;            /* 1: B is stored n x k */
  int32_t epilogue;               /* MGQ_CUDA_ADD, ... or'ed; 0: none */
  int64_t batch, m, n, k;
  /* Elements between rows as stored; columns are contiguous. */
  int64_t lda, ldb, ldc, ld_added;
  /* Elements between matrices of the batch; 0: one for all. */
  int64_t stride_a, stride_b, stride_c, stride_added;
  double alpha;
} mgq_cuda_product;

/* `added` and `bias`: null without MGQ_CUDA_ADD, MGQ_CUDA_BIAS. */
void mgq_cuda_matmul(const mgq_cuda_product *product, const void *a,
                     const void *b, void *c, const void *added,
                     const void *bias);

/* Attention, forward or backward: the tensors below at their first elements,
 * laid out as `problem` says. */
typedef enum mgq_cuda_attention_tensor {
  MGQ_ATTENTION_Q,
  MGQ_ATTENTION_K,
  MGQ_ATTENTION_V,
  MGQ_ATTENTION_BIAS, /* null: there is none. Booleans hide where 0. */
  MGQ_ATTENTION_RESULT,
  /* Only backward has the rest. Scratch first, f32. */
  /* [2, batch, heads, query_length]: each row's maximum, and 1 / sum; or the
   * statistics of rt_cudnn.h in the first half. */
  MGQ_ATTENTION_STATS,
  MGQ_ATTENTION_SUMS, /* [batch, heads, query_length]: of grad * result */
  /* Scratch like the result; null where `library` is 0. */
  MGQ_ATTENTION_SPARE,
  MGQ_ATTENTION_GRAD, /* of the result */
  MGQ_ATTENTION_GRAD_Q,
  MGQ_ATTENTION_GRAD_K,
  MGQ_ATTENTION_GRAD_V,
  MGQ_ATTENTION_TENSORS
} mgq_cuda_attention_tensor;

/* A table of constants: its address may serve as the key of what was chosen for
 * it. */
typedef struct mgq_cuda_attention_table {
  mgq_cudnn_problem problem; /* `backward` tells what the call is */
  int32_t library;           /* 1: cuDNN may compute it */
  /* What does else: kernels, run one after the other, whose parameters are the
   * tensors, forward up to the result. */
  int32_t kernel_count;
  int32_t kernels[3];
  int32_t reserved;
  int64_t blocks[3];
} mgq_cuda_attention_table;

void mgq_cuda_attention(const mgq_cuda_attention_table *table,
                        void *const *tensors);

/*===--- Generated, called by the runtime
 * -----------------------------------===*/

/* Optimizer kernels; each enqueues on the current stream. Pointers are device
 * addresses but for `scalars`, which is read before the call returns. The
 * generated `mgq_adamw` and `mgq_accumulate` have the types of rt.h. */

/* Adds the squares of n elements, in f64: `blocks` (device, room for
 * ceil(n / MGQ_NORM_BLOCK) values) gets the sums of blocks of MGQ_NORM_BLOCK
 * elements, `*sum` (device) their sum, in order. */
void mgq_cuda_sq_norm(double *sum, double *blocks, const float *values,
                      int64_t n);

/* values[i] = values[i] * factor, computed in f64 and rounded once. */
void mgq_cuda_scale(float *values, double factor, int64_t n);

/* mgq_program.open_device of CUDA programs; of the runtime, not generated. */
void mgq_open_cuda_device(struct mgq_device_request *request);

#ifdef __cplusplus
}
#endif

#endif /* MGQ_RUNTIME_INCLUDE_RT_CUDA_H */
