/* leaves.c - One kernel a group of leaves, checked against the host's maths. */
#include "Device.h"

/* y[8 i ..] = approximations at x[i]. */
KERNEL approximations(const float *x, float *y) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  float v = x[i], *out = y + 8 * i;
  out[0] = __nvvm_ex2_approx_f(v);
  out[1] = __nvvm_lg2_approx_f(v);
  out[2] = __nvvm_rsqrt_approx_f(v);
  out[3] = __nvvm_rcp_approx_ftz_f(v);
  out[4] = __nvvm_sqrt_rn_f(v);
  out[5] = __nvvm_fma_rm_f(v, v, 1e-9f);
  out[6] = (float)(__bf16)v;
  out[7] = __nvvm_saturate_f(v);
}

/* y[4 i ..] = arithmetic and conversions of short types. */
KERNEL conversions(const float *x, float *y) {
  int i = BLOCK * BLOCK_SIZE + THREAD;
  double wide = x[i] * (1 + 1e-9);
  float *out = y + 4 * i;
  out[0] = (float)(__bf16)wide;
  out[1] = (float)(_Float16)wide;
  out[2] = (float)((__bf16)x[i] * (__bf16)3.0f);
  out[3] = (float)(__bf16)(i - 20);
}

/* y[4 i ..] of one warp: down, up and indexed shuffles, and a ballot. */
KERNEL shuffles(const float *x, float *y) {
  int i = THREAD;
  y[4 * i] = __nvvm_shfl_sync_down_f32(-1, x[i], 3, 31);
  y[4 * i + 1] = __nvvm_shfl_sync_up_f32(-1, x[i], 5, 0);
  y[4 * i + 2] = __nvvm_shfl_sync_idx_f32(-1, x[i], 7, 31);
  y[4 * i + 3] = __nvvm_vote_ballot_sync(-1, i % 3 == 0) == 0x49249249u;
}
