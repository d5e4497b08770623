/*===- cuda_host.c - A runtime that is just enough for tests of kernels
-----===*\
|*
|* Runs layer functions on the device that libcuda.so.1 offers, one stream, one
|* call after the other; products are computed on the host. Every fault ends the
|* process with a message.
|*
\*===----------------------------------------------------------------------===*/
#include "runtime/include/rt_cuda.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*fn)();

static void *library;
static void *stream, *module;
static void *functions[4096];
static uint64_t check;

/* Calls an entry point of the driver. */
#define CALL(name, ...)                                                        \
  do {                                                                         \
    fn function_ = (fn)dlsym(library, name);                                   \
    int code = function_ ? function_(__VA_ARGS__) : -1;                        \
    if (code) {                                                                \
      fprintf(stderr, "%s failed: %d\n", name, code);                          \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

/* The image for a device, as the runtime chooses it. */
static const void *image_for(int device) {
  const mgq_cuda_module *table = &mgq_cuda_module_table;
  const mgq_cuda_image *best = NULL;
  int major, minor;
  int32_t i;
  CALL("cuDeviceGetAttribute", &major, 75 /* compute capability */, device);
  CALL("cuDeviceGetAttribute", &minor, 76, device);
  for (i = 0; i < table->image_count; ++i) {
    const mgq_cuda_image *image = &table->images[i];
    int32_t fits = image->sm <= 10 * major + minor &&
                   (image->is_ptx || image->sm / 10 == major);
    if (fits &&
        (!best || best->is_ptx || (!image->is_ptx && image->sm > best->sm)))
      best = image;
  }
  if (!best) {
    fprintf(stderr, "no image for sm_%d%d\n", major, minor);
    exit(1);
  }
  return best->data;
}

void test_open(void) {
  const mgq_cuda_module *table = &mgq_cuda_module_table;
  int device;
  void *context;
  int32_t i;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library || table->abi_version != MGQ_CUDA_ABI_VERSION) {
    fprintf(stderr, "no device: %s\n", dlerror());
    exit(1);
  }
  CALL("cuInit", 0);
  CALL("cuDeviceGet", &device, 0);
  CALL("cuDevicePrimaryCtxRetain", &context, device);
  CALL("cuCtxSetCurrent", context);
  CALL("cuStreamCreate", &stream, 1 /* not with the null stream */);
  CALL("cuModuleLoadData", &module, image_for(device));
  for (i = 0; i < table->kernel_count; ++i)
    CALL("cuModuleGetFunction", &functions[i], module, table->kernels[i].name);
  CALL("cuMemAlloc_v2", &check, sizeof(mgq_cuda_check));
  CALL("cuMemsetD8Async", check, 0, sizeof(mgq_cuda_check), stream);
}

/* Gives back what test_open took: the test device tells what is left. */
void test_close(void) {
  CALL("cuMemFree_v2", check);
  CALL("cuStreamDestroy_v2", stream);
  CALL("cuModuleUnload", module);
}

static void synchronize(void) { CALL("cuStreamSynchronize", stream); }

uint64_t test_alloc(int64_t bytes) {
  uint64_t address;
  CALL("cuMemAlloc_v2", &address, bytes ? bytes : 1);
  return address;
}
void test_free(uint64_t address) { CALL("cuMemFree_v2", address); }
void test_upload(uint64_t to, const void *from, int64_t bytes) {
  if (bytes)
    CALL("cuMemcpyHtoDAsync_v2", to, from, bytes, stream);
  synchronize();
}
void test_download(void *to, uint64_t from, int64_t bytes) {
  if (bytes)
    CALL("cuMemcpyDtoHAsync_v2", to, from, bytes, stream);
  synchronize();
}

/* Forgets failed checks; returns whether there was one. */
int test_take_check(void) {
  mgq_cuda_check found, none = {0, 0, 0, 0};
  test_download(&found, check, sizeof found);
  test_upload(check, &none, sizeof none);
  return found.failed;
}

void mgq_cuda_launch(int32_t kernel, int64_t blocks, void *const *params) {
  const mgq_cuda_kernel *entry = &mgq_cuda_module_table.kernels[kernel];
  void *all[64];
  memcpy(all, params, entry->param_count * sizeof *all);
  if (entry->checks)
    all[entry->param_count] = &check;
  CALL("cuLaunchKernel", functions[kernel], (unsigned)blocks, 1u, 1u,
       (unsigned)entry->threads, 1u, 1u, 0u, stream, all, (void *)0);
  synchronize(); /* so that a fault is that kernel's */
}

/*===--- Attention
 * ----------------------------------------------===*/

/* An entry point of libmgq_cudnn.so. */
static void *cudnn(const char *name) {
  static void *handle;
  void *found;
  if (!handle)
    handle = dlopen(MGQ_CUDNN_LIBRARY, RTLD_NOW);
  found = handle ? dlsym(handle, name) : NULL;
  if (!found) {
    fprintf(stderr, "no %s: %s\n", name, dlerror());
    exit(1);
  }
  return found;
}

static int uses_cudnn, cudnn_calls, cudnn_faults;

/* Whether a call has succeeded; else it is said, and counted. */
static int cudnn_succeeds(int32_t status, const char *text) {
  if (status == MGQ_CUDNN_DONE)
    return 1;
  fprintf(stderr, "cuDNN: %s\n", text);
  ++cudnn_faults;
  return 0;
}

/* Whether cuDNN takes the problem; then it has computed it. */
static int cudnn_attention(const mgq_cuda_attention_table *table,
                           void *const *tensors) {
  char text[512] = "";
  mgq_cudnn_attention *handle = NULL;
  mgq_cudnn_tensors all;
  uint64_t workspace;
  int done;
  int32_t backward = table->problem.backward;
  int32_t status = ((mgq_cudnn_open_fn)cudnn(MGQ_CUDNN_OPEN))(
      MGQ_CUDNN_ABI_VERSION, &table->problem, &handle, text, sizeof text);
  if (status == MGQ_CUDNN_REFUSED || !cudnn_succeeds(status, text))
    return 0;
  workspace = test_alloc(
      ((mgq_cudnn_workspace_fn)cudnn(MGQ_CUDNN_WORKSPACE))(handle, backward));
  memset(&all, 0, sizeof all);
  all.q = tensors[MGQ_ATTENTION_Q];
  all.k = tensors[MGQ_ATTENTION_K];
  all.v = tensors[MGQ_ATTENTION_V];
  all.bias = tensors[MGQ_ATTENTION_BIAS];
  all.workspace = (void *)(uintptr_t)workspace;
  all.result = tensors[backward ? MGQ_ATTENTION_SPARE : MGQ_ATTENTION_RESULT];
  if (backward)
    all.stats = (float *)tensors[MGQ_ATTENTION_STATS];
  done = cudnn_succeeds(((mgq_cudnn_run_fn)cudnn(MGQ_CUDNN_FORWARD))(
                            handle, stream, &all, text, sizeof text),
                        text);
  if (backward) {
    all.result = tensors[MGQ_ATTENTION_RESULT];
    all.grad = tensors[MGQ_ATTENTION_GRAD];
    all.grad_q = tensors[MGQ_ATTENTION_GRAD_Q];
    all.grad_k = tensors[MGQ_ATTENTION_GRAD_K];
    all.grad_v = tensors[MGQ_ATTENTION_GRAD_V];
    done = done && cudnn_succeeds(((mgq_cudnn_run_fn)cudnn(MGQ_CUDNN_BACKWARD))(
                                      handle, stream, &all, text, sizeof text),
                                  text);
  }
  synchronize();
  test_free(workspace);
  ((mgq_cudnn_close_fn)cudnn(MGQ_CUDNN_CLOSE))(handle);
  return done;
}

/* Whether cuDNN computes what it takes from here on; returns how many calls it
 * has computed, -1: there is no cuDNN. */
int test_use_cudnn(int use) {
  void *library = use ? dlopen(MGQ_CUDNN_LIBRARY, RTLD_NOW) : NULL;
  if (use && (!library || !((mgq_cudnn_version_fn)cudnn(MGQ_CUDNN_VERSION))()))
    return -1;
  uses_cudnn = use;
  return cudnn_calls;
}

/* What cuDNN has taken and not computed. */
int test_cudnn_faults(void) { return cudnn_faults; }

void mgq_cuda_attention(const mgq_cuda_attention_table *table,
                        void *const *tensors) {
  void *params[MGQ_ATTENTION_TENSORS];
  int32_t i, count = table->problem.backward ? MGQ_ATTENTION_TENSORS
                                             : MGQ_ATTENTION_RESULT + 1;
  if (uses_cudnn && table->library && cudnn_attention(table, tensors)) {
    ++cudnn_calls;
    return;
  }
  for (i = 0; i < count; ++i)
    params[i] = (void *)(tensors + i);
  for (i = 0; i < table->kernel_count; ++i)
    mgq_cuda_launch(table->kernels[i], table->blocks[i], params);
}

/*===--- Products, on the host
 * ----------------------------------------------===*/

static int64_t size_of(int32_t type) {
  return type == MGQ_F64 ? 8 : type == MGQ_F32 ? 4 : 2;
}
static double number(const void *data, int32_t type, int64_t i) {
  uint32_t bits;
  float value;
  switch (type) {
  case MGQ_F64:
    return ((const double *)data)[i];
  case MGQ_F32:
    return ((const float *)data)[i];
  case MGQ_BF16:
    bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    memcpy(&value, &bits, 4);
    return value;
  default:
    return (double)((const _Float16 *)data)[i];
  }
}

static void put(void *data, int32_t type, int64_t i, double wide) {
  float value = (float)wide;
  uint32_t bits;
  switch (type) {
  case MGQ_F64:
    ((double *)data)[i] = wide;
    break;
  case MGQ_F32:
    ((float *)data)[i] = value;
    break;
  case MGQ_BF16:
    memcpy(&bits, &value, 4);
    ((uint16_t *)data)[i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    break;
  default:
    ((_Float16 *)data)[i] = (_Float16)value;
  }
}

static void *fetch(const void *from, int64_t count, int32_t type) {
  void *data = malloc(count * size_of(type) + 1);
  test_download(data, (uint64_t)(uintptr_t)from, count * size_of(type));
  return data;
}

static double gelu(double x) {
  return x / 2 *
         (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

void mgq_cuda_matmul(const mgq_cuda_product *p, const void *a, const void *b,
                     void *c, const void *added, const void *bias) {
  int64_t rowsA = p->transpose_a ? p->k : p->m;
  int64_t rowsB = p->transpose_b ? p->n : p->k;
  int64_t columnsA = p->transpose_a ? p->m : p->k;
  int64_t columnsB = p->transpose_b ? p->k : p->n;
  int64_t sizeA =
      (p->batch - 1) * p->stride_a + (rowsA - 1) * p->lda + columnsA;
  int64_t sizeB =
      (p->batch - 1) * p->stride_b + (rowsB - 1) * p->ldb + columnsB;
  int64_t sizeC = (p->batch - 1) * p->stride_c + (p->m - 1) * p->ldc + p->n;
  void *da = fetch(a, sizeA, p->a_type), *db = fetch(b, sizeB, p->b_type);
  int64_t sizeAdded =
      (p->batch - 1) * p->stride_added + (p->m - 1) * p->ld_added + p->n;
  char *dc = fetch(c, sizeC, p->c_type);
  void *dd = added ? fetch(added, sizeAdded, p->c_type) : NULL;
  void *dv = bias ? fetch(bias, p->n, p->c_type) : NULL;
  int64_t batch, i, j, k;
  for (batch = 0; batch < p->batch; ++batch)
    for (i = 0; i < p->m; ++i)
      for (j = 0; j < p->n; ++j) {
        double sum = 0;
        int64_t at = batch * p->stride_c + i * p->ldc + j;
        for (k = 0; k < p->k; ++k) {
          int64_t x = p->transpose_a ? k * p->lda + i : i * p->lda + k;
          int64_t y = p->transpose_b ? j * p->ldb + k : k * p->ldb + j;
          sum += number(da, p->a_type, batch * p->stride_a + x) *
                 number(db, p->b_type, batch * p->stride_b + y);
        }
        sum *= p->alpha;
        if (p->epilogue & MGQ_CUDA_ADD)
          sum += number(dd, p->c_type,
                        batch * p->stride_added + i * p->ld_added + j);
        if (p->epilogue & MGQ_CUDA_BIAS)
          sum += number(dv, p->c_type, j);
        put(dc, p->c_type, at, p->epilogue & MGQ_CUDA_GELU ? gelu(sum) : sum);
      }
  test_upload((uint64_t)(uintptr_t)c, dc, sizeC * size_of(p->c_type));
  free(da);
  free(db);
  free(dc);
  free(dd);
  free(dv);
}
