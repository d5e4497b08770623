/*===- rt_cudnn.h - Attention by cuDNN, as a library of its own -------------===
 *
 * libmgq_cudnn.so wraps cuDNN's attention (through the cudnn frontend, in one
 * file of the runtime). It is loaded at run time, so programs start without
 * cuDNN; on the test device a stand-in has its name. Functions named
 * mgq_cudnn_* below are what it exports.
 *
 * C11 and C++17. No exception crosses this line.
 *===----------------------------------------------------------------------===*/
#ifndef MGQ_RUNTIME_INCLUDE_RT_CUDNN_H
#define MGQ_RUNTIME_INCLUDE_RT_CUDNN_H

#include "runtime/include/rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever something below changes. */
#define MGQ_CUDNN_ABI_VERSION 2

#define MGQ_CUDNN_LIBRARY "libmgq_cudnn.so"

typedef enum mgq_cudnn_causal {
  MGQ_CUDNN_SEES_ALL,
  MGQ_CUDNN_SEES_UP_TO_ITSELF, /* query i sees keys 0 to i */
  MGQ_CUDNN_SEES_FROM_END      /* keys 0 to i + key_length - query_length */
} mgq_cudnn_causal;

/* result = softmax(scale q k^T + bias) v. q [batch, heads, query_length,
 * head_size], k [batch, kv_heads, key_length, head_size], v [batch, kv_heads,
 * key_length, value_size], result [batch, heads, query_length, value_size];
 * query head h reads kv head h / (heads / kv_heads). Strides are in elements,
 * for the axes in this order; a gradient lies as the tensor it is of. */
typedef struct mgq_cudnn_problem {
  int32_t type;     /* mgq_type: MGQ_BF16 or MGQ_F16; sums are in f32 */
  int32_t causal;   /* mgq_cudnn_causal */
  int32_t backward; /* 1: mgq_cudnn_backward will be called too */
  int32_t has_bias; /* 1: of `type`; no gradient of it is made */
  double scale;
  int64_t batch, heads, kv_heads;
  int64_t query_length, key_length, head_size, value_size;
  int64_t q_strides[4], k_strides[4], v_strides[4], result_strides[4];
  /* [batch, heads, query_length, key_length], an extent may be 1. */
  int64_t bias_extents[4], bias_strides[4];
} mgq_cudnn_problem;

typedef enum mgq_cudnn_status {
  MGQ_CUDNN_DONE,
  MGQ_CUDNN_REFUSED, /* cuDNN does not take such a problem */
  MGQ_CUDNN_FAILED,  /* `error` has cuDNN's text */
  MGQ_CUDNN_MISSING  /* no cuDNN can be loaded and started; `error` says why */
} mgq_cudnn_status;

typedef struct mgq_cudnn_attention mgq_cudnn_attention;

/* Device addresses. What a call does not need is null. */
typedef struct mgq_cudnn_tensors {
  const void *q, *k, *v;
  const void *bias;
  void *result;
  /* f32 [batch, heads, query_length], contiguous: the log of the sum of the
   * exponentials of each row. Forward writes it if not null; backward reads
   * it. */
  float *stats;
  const void *grad; /* of `result` */
  void *grad_q, *grad_k, *grad_v;
  void *workspace;
} mgq_cudnn_tensors;

/* cuDNN's version, 91900 for 9.19.0; 0: none can be loaded. */
typedef int64_t (*mgq_cudnn_version_fn)(void);

/* Plans a problem for the current context's device. */
typedef int32_t (*mgq_cudnn_open_fn)(int32_t abi_version,
                                     const mgq_cudnn_problem *problem,
                                     mgq_cudnn_attention **attention,
                                     char *error, int64_t error_bytes);
typedef void (*mgq_cudnn_close_fn)(mgq_cudnn_attention *attention);

/* Bytes of workspace of a call, which may be zero. */
typedef int64_t (*mgq_cudnn_workspace_fn)(const mgq_cudnn_attention *attention,
                                          int32_t backward);

/* Enqueue on `stream`, a CUstream; allocate nothing. */
typedef int32_t (*mgq_cudnn_run_fn)(mgq_cudnn_attention *attention,
                                    void *stream,
                                    const mgq_cudnn_tensors *tensors,
                                    char *error, int64_t error_bytes);

#define MGQ_CUDNN_VERSION "mgq_cudnn_version"
#define MGQ_CUDNN_OPEN "mgq_cudnn_open"
#define MGQ_CUDNN_CLOSE "mgq_cudnn_close"
#define MGQ_CUDNN_WORKSPACE "mgq_cudnn_workspace"
#define MGQ_CUDNN_FORWARD "mgq_cudnn_forward"
#define MGQ_CUDNN_BACKWARD "mgq_cudnn_backward"

#ifdef __cplusplus
}
#endif

#endif /* MGQ_RUNTIME_INCLUDE_RT_CUDNN_H */
