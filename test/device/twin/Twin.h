/*===- Twin.h - What twins of kernels and the test device share -------------===
 *
 * A twin is a shared library made by mgq-twin from the LLVM IR of one device
 * image. It exports `mgq_twin_table`; all else that it needs of the device is
 * declared here and lives in the test device's libcuda.so.1.
 *
 * C11 and C++17. Leaves.c includes this too.
 *===----------------------------------------------------------------------===*/
#ifndef MGQ_TEST_DEVICE_TWIN_TWIN_H
#define MGQ_TEST_DEVICE_TWIN_TWIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever something below changes. */
#define MGQ_TWIN_VERSION 1

/* Where the running GPU thread is: x, y, z. */
typedef struct mgq_twin_position {
  int32_t thread[3];
  int32_t block_size[3];
  int32_t block[3];
  int32_t grid[3];
} mgq_twin_position;

/* Of the OS thread that runs a block: its fibres take turns. */
extern __thread mgq_twin_position mgq_twin_here
    __attribute__((tls_model("initial-exec")));
/* The running block's shared memory: static variables, then dynamic. */
extern __thread char *mgq_twin_shared
    __attribute__((tls_model("initial-exec")));

typedef enum mgq_twin_access_kind {
  MGQ_TWIN_READ = 0,
  MGQ_TWIN_WRITE = 1,
  MGQ_TWIN_ATOMIC = 2
} mgq_twin_access_kind;

/* Before each load, store and atomic of a checked twin. `kind_and_align`: an
 * mgq_twin_access_kind, plus 256 times the alignment that the code relies on,
 * bytes. Does not return when the access cannot be made. */
void mgq_twin_access(const volatile void *address, int64_t bytes,
                     int32_t kind_and_align);

typedef struct mgq_twin_kernel {
  const char *name;
  void (*entry)(void *const *params); /* one thread, at mgq_twin_here */
  int32_t param_count;
  const int32_t *param_bytes;
  int64_t shared_bytes;     /* static; dynamic shared memory follows */
  int32_t max_threads[3];   /* of a block, zero: not said */
  int32_t exact_threads[3]; /* that a block must have, zero: not said */
  int32_t collective;       /* 1: threads meet at barriers or in warps */
  int64_t stack_bytes;      /* of local variables, of one thread */
} mgq_twin_kernel;

typedef struct mgq_twin_global {
  const char *name;
  void *address;
  int64_t bytes;
  int32_t constant;
} mgq_twin_global;

typedef struct mgq_twin_module {
  int32_t version; /* MGQ_TWIN_VERSION */
  int32_t checked; /* 1: calls mgq_twin_access */
  const mgq_twin_kernel *kernels;
  int32_t kernel_count;
  const mgq_twin_global *globals;
  int32_t global_count;
} mgq_twin_module;

#define MGQ_TWIN_TABLE "mgq_twin_table"

#ifdef __cplusplus
}
#endif

#endif /* MGQ_TEST_DEVICE_TWIN_TWIN_H */
