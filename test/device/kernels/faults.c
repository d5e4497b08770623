/* faults.c - Kernels that are right, and wrong in one way each. */
#include "Device.h"

/* y = a x, n elements. */
KERNEL scale(const float *x, float *y, float a, int n) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  if (i < n)
    y[i] = a * x[i];
}

/* One element too many. */
KERNEL out_of_bounds(const float *x, float *y, float a, int n) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  if (i <= n)
    y[i] = a * x[i];
}

/* Four elements from the second on. */
KERNEL misaligned(const float *x, float *y, float a, int n) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  if (4 * i + 5 <= n)
    *(float4 *)(y + 4 * i) = a * *(const float4 *)(x + 4 * i + 1);
}

/* Four elements from the first on. */
KERNEL aligned(const float *x, float *y, float a, int n) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  if (4 * i < n)
    *(float4 *)(y + 4 * i) = a * *(const float4 *)(x + 4 * i);
}

/* A shuffle that half of a warp does not reach. */
KERNEL divergent_shuffle(const float *x, float *y, float a, int n) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  float value = x[i];
  if (i % 32 < 16)
    value = SUM_LANES(value, 1);
  y[i] = a * value;
}

/* Two halves of a warp in two shuffles. */
KERNEL two_shuffles(const float *x, float *y, float a, int n) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  float value = x[i];
  if (i % 32 < 16)
    value = SUM_LANES(value, 1);
  else
    value = a * SUM_LANES(value, 2);
  y[i] = value;
}

/* A barrier in a branch that a half of each warp takes. */
KERNEL divergent_barrier(const float *x, float *y, float a, int n) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  y[i] = a;
  if (i % 32 < 16) {
    __nvvm_bar_sync(0);
    y[i] = a * x[i];
  } else {
    __nvvm_bar_sync(0);
  }
}

/* Every block writes y[0]. */
KERNEL block_race(const float *x, float *y, float a, int n) {
  if (THREAD == 0)
    y[0] = a * x[BLOCK];
}

/* Every block adds to y[0]: no race. */
KERNEL atomic_sum(const float *x, float *y, float a, int n) {
  if (THREAD == 0)
    __nvvm_atom_add_gen_f((float *)y, a * x[BLOCK]);
}

/* Bytes side by side are no race. */
KERNEL bytes(const float *x, float *y, float a, int n) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  ((unsigned char *)y)[i] = x[i] > a;
}

/* Halves side by side are no race, nor are bytes of what halves lie beside. */
KERNEL halves(const float *x, float *y, float a, int n) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  ((__bf16 *)y)[i] = (__bf16)x[i];
  ((unsigned char *)(y + 32))[i] = x[i] > a;
}

struct pair {
  float a;
  int n;
};

/* A struct among the parameters. */
KERNEL by_value(const float *x, float *y, struct pair p) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  if (i < p.n)
    y[i] = p.a * x[i];
}

/* Every thread reads y[0], the last one writes it; n: after a barrier. */
KERNEL many_readers(const float *x, float *y, float a, int n) {
  float first = *(volatile float *)y;
  if (n)
    __nvvm_bar_sync(0);
  if (THREAD == 63)
    y[0] = first + x[0];
}

static SHARED float twice[64];

/* Shared memory that no thread has written. */
KERNEL shared_uninitialized(const float *x, float *y, float a, int n) {
  if (THREAD < 32)
    twice[THREAD] = x[THREAD];
  __nvvm_bar_sync(0);
  y[THREAD] = twice[2 * THREAD % 64];
}

/* Past the end of shared memory. */
KERNEL shared_bounds(const float *x, float *y, float a, int n) {
  twice[THREAD + n] = x[THREAD];
  __nvvm_bar_sync(0);
  y[THREAD] = twice[THREAD];
}

static SHARED float mine[64];
static SHARED float others[64];

/* Past the end of what this kernel has, where shared_others has memory. */
KERNEL shared_mine(const float *x, float *y, float a, int n) {
  mine[THREAD + n] = x[THREAD];
  __nvvm_bar_sync(0);
  y[THREAD] = mine[THREAD];
}

KERNEL shared_others(const float *x, float *y, float a, int n) {
  others[THREAD + n] = x[THREAD];
  __nvvm_bar_sync(0);
  y[THREAD] = others[THREAD];
}

/* Threads of one warp pass values through memory; n: with a barrier. */
KERNEL within_warp(const float *x, float *y, float a, int n) {
  twice[THREAD] = x[THREAD];
  if (n)
    __nvvm_bar_warp_sync(-1);
  y[THREAD] = twice[THREAD ^ 1];
}

/* The threads of a warp read what one of them then writes; n: with a barrier.
 */
KERNEL read_by_warp(const float *x, float *y, float a, int n) {
  int first = THREAD & ~31;
  float one;
  twice[THREAD] = x[THREAD];
  __nvvm_bar_warp_sync(-1);
  one = twice[first];
  if (n)
    __nvvm_bar_warp_sync(-1);
  if (THREAD == first)
    twice[first] = one + a;
  y[THREAD] = one;
}

/* Threads wait for each other by turns: no one ends. */
KERNEL too_few(const float *x, float *y, float a, int n) {
  if (THREAD < 33)
    return;
  __nvvm_bar_warp_sync(-1);
  y[THREAD] = x[THREAD];
}
