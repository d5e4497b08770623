/*===- Leaves.c - NVVM intrinsics of one thread, on the host ----------------===
 *
 * `llvm.nvvm.NAME` is `twin_nvvm_NAME` here, with `_` for `.`. Inline assembly
 * is `twin_asm_` and the words of its text without operands. These are linked
 * into each twin as bitcode. Intrinsics at which threads meet, or which reach
 * memory, are in CollectiveLeaves.inc and part of libcuda.so.1. What is in
 * neither has no twin: mgq-twin says so.
 *
 * C's types for LLVM's (Convert.cpp adapts calls): i1 is int, a vector of four
 * bytes is uint32_t, a struct that is returned is written through a first
 * argument. `approx` results are correctly rounded or within an ulp, so better
 * than a GPU's; `ftz` forms flush subnormal inputs and results.
 *===----------------------------------------------------------------------===*/
#include "test/device/twin/Twin.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

/*===--- Where a thread is
 * -------------------------------------------------===*/

#define SPECIAL_REGISTER(name, field, axis)                                    \
  int twin_nvvm_read_ptx_sreg_##name(void) { return mgq_twin_here.field[axis]; }
SPECIAL_REGISTER(tid_x, thread, 0)
SPECIAL_REGISTER(tid_y, thread, 1)
SPECIAL_REGISTER(tid_z, thread, 2)
SPECIAL_REGISTER(ntid_x, block_size, 0)
SPECIAL_REGISTER(ntid_y, block_size, 1)
SPECIAL_REGISTER(ntid_z, block_size, 2)
SPECIAL_REGISTER(ctaid_x, block, 0)
SPECIAL_REGISTER(ctaid_y, block, 1)
SPECIAL_REGISTER(ctaid_z, block, 2)
SPECIAL_REGISTER(nctaid_x, grid, 0)
SPECIAL_REGISTER(nctaid_y, grid, 1)
SPECIAL_REGISTER(nctaid_z, grid, 2)

int twin_nvvm_read_ptx_sreg_warpsize(void) { return 32; }

int twin_nvvm_read_ptx_sreg_laneid(void) {
  const mgq_twin_position *at = &mgq_twin_here;
  int row = at->thread[2] * at->block_size[1] + at->thread[1];
  return (row * at->block_size[0] + at->thread[0]) & 31;
}

/*===--- Fences: blocks run one after another, memory is ordered
 * -----------===*/

void twin_nvvm_membar_cta(void) {}
void twin_nvvm_membar_gl(void) {}
void twin_nvvm_membar_sys(void) {}
void twin_nvvm_fence_sc_cluster(void) {}

/*===--- Floating point
 * ----------------------------------------------------===*/

static float flush(float x) {
  return fabsf(x) < 0x1p-126f ? copysignf(0.f, x) : x;
}
static float bits_to_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static uint32_t float_to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

#define UNARY(name, value)                                                     \
  float twin_nvvm_##name(float x) { return value; }
#define UNARY_FTZ(name, value)                                                 \
  float twin_nvvm_##name(float input) {                                        \
    float x = flush(input);                                                    \
    return flush(value);                                                       \
  }
UNARY(ex2_approx_f, exp2f(x))
UNARY(ex2_approx_f32, exp2f(x))
UNARY_FTZ(ex2_approx_ftz_f, exp2f(x))
UNARY_FTZ(ex2_approx_ftz_f32, exp2f(x))
UNARY(lg2_approx_f, log2f(x))
UNARY_FTZ(lg2_approx_ftz_f, log2f(x))
UNARY(rcp_rn_f, 1.f / x)
UNARY_FTZ(rcp_rn_ftz_f, 1.f / x)
UNARY_FTZ(rcp_approx_ftz_f, 1.f / x)
UNARY(rsqrt_approx_f, (float)(1.0 / sqrt((double)x)))
UNARY_FTZ(rsqrt_approx_ftz_f, (float)(1.0 / sqrt((double)x)))
UNARY(sqrt_f, sqrtf(x))
UNARY(sqrt_rn_f, sqrtf(x))
UNARY(sqrt_approx_f, sqrtf(x))
UNARY_FTZ(sqrt_rn_ftz_f, sqrtf(x))
UNARY_FTZ(sqrt_approx_ftz_f, sqrtf(x))
UNARY(sin_approx_f, sinf(x))
UNARY(cos_approx_f, cosf(x))
UNARY_FTZ(sin_approx_ftz_f, sinf(x))
UNARY_FTZ(cos_approx_ftz_f, cosf(x))
UNARY(tanh_approx_f, tanhf(x))
UNARY(tanh_approx_f32, tanhf(x))
UNARY(fabs_f, fabsf(x))
UNARY(fabs_f32, fabsf(x))
double twin_nvvm_fabs_f64(double x) { return fabs(x); }
UNARY_FTZ(fabs_ftz, fabsf(x))
UNARY_FTZ(fabs_ftz_f32, fabsf(x))
UNARY(floor_f, floorf(x))
UNARY(ceil_f, ceilf(x))
UNARY(trunc_f, truncf(x))
UNARY(round_f, nearbyintf(x))
UNARY_FTZ(floor_ftz_f, floorf(x))
UNARY_FTZ(ceil_ftz_f, ceilf(x))
UNARY_FTZ(trunc_ftz_f, truncf(x))
UNARY_FTZ(round_ftz_f, nearbyintf(x))
/* NaN becomes +0. */
UNARY(saturate_f, x > 0.f ? (x < 1.f ? x : 1.f) : 0.f)
UNARY_FTZ(saturate_ftz_f, x > 0.f ? (x < 1.f ? x : 1.f) : 0.f)

/* The neighbour of the rounded `near` towards -inf, where it lies above the
 * exact sum high + low. */
static float round_down(float near, double high, double low) {
  int above = (double)near > high || ((double)near == high && low < 0);
  return above ? nextafterf(near, -INFINITY) : near;
}
/* A product of floats is exact in double; TwoSum gives what the sum loses. */
static void exact_fma(float a, float b, float c, double *sum, double *lost) {
  double product = (double)a * b;
  *sum = product + c;
  double shadow = *sum - product;
  *lost = (product - (*sum - shadow)) + (c - shadow);
}
float twin_nvvm_fma_rm_f(float a, float b, float c) {
  double sum, lost;
  exact_fma(a, b, c, &sum, &lost);
  return round_down((float)sum, sum, lost);
}
float twin_nvvm_fma_rp_f(float a, float b, float c) {
  return -twin_nvvm_fma_rm_f(-a, b, -c);
}
float twin_nvvm_fma_rz_f(float a, float b, float c) {
  double sum, lost;
  exact_fma(a, b, c, &sum, &lost);
  return sum < 0 ? twin_nvvm_fma_rp_f(a, b, c) : twin_nvvm_fma_rm_f(a, b, c);
}
float twin_nvvm_fma_rn_f(float a, float b, float c) { return fmaf(a, b, c); }
float twin_nvvm_fma_rn_ftz_f(float a, float b, float c) {
  return flush(fmaf(flush(a), flush(b), flush(c)));
}
float twin_nvvm_add_rz_f(float a, float b) {
  return twin_nvvm_fma_rz_f(a, 1.f, b);
}
float twin_nvvm_mul_rz_f(float a, float b) {
  return twin_nvvm_fma_rz_f(a, b, 0.f);
}

#define BINARY(name, value)                                                    \
  float twin_nvvm_##name(float a, float b) { return value; }
BINARY(add_rn_f, a + b)
BINARY(mul_rn_f, a *b)
BINARY(div_rn_f, a / b)
BINARY(div_approx_f, a / b)
BINARY(div_full, a / b)
BINARY(add_rn_ftz_f, flush(flush(a) + flush(b)))
BINARY(mul_rn_ftz_f, flush(flush(a) * flush(b)))
BINARY(div_rn_ftz_f, flush(flush(a) / flush(b)))
BINARY(div_approx_ftz_f, flush(flush(a) / flush(b)))
BINARY(div_full_ftz, flush(flush(a) / flush(b)))
BINARY(fmax_f, fmaxf(a, b))
BINARY(fmin_f, fminf(a, b))
BINARY(fmax_ftz_f, fmaxf(flush(a), flush(b)))
BINARY(fmin_ftz_f, fminf(flush(a), flush(b)))
/* max.NaN: NaN if either is, the canonical one of a GPU; +0 above -0. */
static float nan_max(float a, float b) {
  if (a != a || b != b)
    return bits_to_float(0x7fffffff);
  return a > b || (a == b && !signbit(a)) ? a : b;
}
BINARY(fmax_nan_f, nan_max(a, b))
BINARY(fmin_nan_f, -nan_max(-a, -b))
BINARY(fmax_ftz_nan_f, nan_max(flush(a), flush(b)))
BINARY(fmin_ftz_nan_f, -nan_max(-flush(a), -flush(b)))

double twin_nvvm_fma_rn_d(double a, double b, double c) { return fma(a, b, c); }
double twin_nvvm_add_rn_d(double a, double b) { return a + b; }
double twin_nvvm_mul_rn_d(double a, double b) { return a * b; }
double twin_nvvm_div_rn_d(double a, double b) { return a / b; }
double twin_nvvm_sqrt_rn_d(double x) { return sqrt(x); }
double twin_nvvm_rcp_rn_d(double x) { return 1.0 / x; }
double twin_nvvm_rcp_approx_ftz_d(double x) { return 1.0 / x; }
double twin_nvvm_rsqrt_approx_d(double x) { return 1.0 / sqrt(x); }
double twin_nvvm_fabs_d(double x) { return fabs(x); }
double twin_nvvm_floor_d(double x) { return floor(x); }
double twin_nvvm_ceil_d(double x) { return ceil(x); }
double twin_nvvm_trunc_d(double x) { return trunc(x); }
double twin_nvvm_round_d(double x) { return nearbyint(x); }
double twin_nvvm_fmax_d(double a, double b) { return fmax(a, b); }
double twin_nvvm_fmin_d(double a, double b) { return fmin(a, b); }

/*===--- Conversions: saturating, NaN becomes 0
 * ----------------------------===*/

#define TO_INTEGER(name, from, to, low, high, limit, round)                    \
  to twin_nvvm_##name(from x) {                                                \
    from y = round(x);                                                         \
    return x != x ? 0 : y >= limit ? high : y <= (from)low ? low : (to)y;      \
  }
TO_INTEGER(f2i_rn, float, int32_t, INT32_MIN, INT32_MAX, 0x1p31f, nearbyintf)
TO_INTEGER(f2i_rz, float, int32_t, INT32_MIN, INT32_MAX, 0x1p31f, truncf)
TO_INTEGER(f2i_rm, float, int32_t, INT32_MIN, INT32_MAX, 0x1p31f, floorf)
TO_INTEGER(f2i_rp, float, int32_t, INT32_MIN, INT32_MAX, 0x1p31f, ceilf)
TO_INTEGER(f2i_rn_ftz, float, int32_t, INT32_MIN, INT32_MAX, 0x1p31f,
           nearbyintf)
TO_INTEGER(f2ui_rn, float, uint32_t, 0, UINT32_MAX, 0x1p32f, nearbyintf)
TO_INTEGER(f2ui_rz, float, uint32_t, 0, UINT32_MAX, 0x1p32f, truncf)
TO_INTEGER(f2ll_rn, float, int64_t, INT64_MIN, INT64_MAX, 0x1p63f, nearbyintf)
TO_INTEGER(f2ll_rz, float, int64_t, INT64_MIN, INT64_MAX, 0x1p63f, truncf)
TO_INTEGER(d2i_rn, double, int32_t, INT32_MIN, INT32_MAX, 0x1p31, nearbyint)
TO_INTEGER(d2i_rz, double, int32_t, INT32_MIN, INT32_MAX, 0x1p31, trunc)
TO_INTEGER(d2ll_rn, double, int64_t, INT64_MIN, INT64_MAX, 0x1p63, nearbyint)

float twin_nvvm_i2f_rn(int32_t x) { return (float)x; }
float twin_nvvm_ui2f_rn(uint32_t x) { return (float)x; }
float twin_nvvm_ll2f_rn(int64_t x) { return (float)x; }
float twin_nvvm_ull2f_rn(uint64_t x) { return (float)x; }
double twin_nvvm_i2d_rn(int32_t x) { return x; }
float twin_nvvm_d2f_rn(double x) { return (float)x; }
double twin_nvvm_lohi_i2d(int32_t low, int32_t high) {
  uint64_t bits = (uint64_t)(uint32_t)high << 32 | (uint32_t)low;
  double x;
  memcpy(&x, &bits, 8);
  return x;
}
int32_t twin_nvvm_d2i_lo(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  return (int32_t)bits;
}
int32_t twin_nvvm_d2i_hi(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  return (int32_t)(bits >> 32);
}

/* cvt.rn: to nearest, ties to even; NaN is the GPU's canonical one. */
static uint16_t to_bf16(float x) {
  uint32_t bits = float_to_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return 0x7fff;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
uint32_t twin_nvvm_ff2bf16x2_rn(float high, float low) {
  return (uint32_t)to_bf16(high) << 16 | to_bf16(low);
}
__bf16 twin_nvvm_f2bf16_rn(float x) {
  uint16_t half = to_bf16(x);
  __bf16 result;
  memcpy(&result, &half, 2);
  return result;
}

/*===--- Integers
 * ----------------------------------------------------------===*/

int32_t twin_nvvm_mulhi_i(int32_t a, int32_t b) {
  return (int32_t)(((int64_t)a * b) >> 32);
}
uint32_t twin_nvvm_mulhi_ui(uint32_t a, uint32_t b) {
  return (uint32_t)(((uint64_t)a * b) >> 32);
}
uint64_t twin_nvvm_mulhi_ull(uint64_t a, uint64_t b) {
  return (uint64_t)(((unsigned __int128)a * b) >> 64);
}
uint32_t twin_nvvm_prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint64_t both = (uint64_t)b << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t pick = selector >> 4 * i & 15;
    uint32_t byte = both >> 8 * (pick & 7) & 255;
    if (pick & 8)
      byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * i;
  }
  return result;
}

/*===--- Inline assembly, of libdevice
 * -------------------------------------===*/

float twin_asm_rcp_approx_ftz_f32(float x) {
  return twin_nvvm_rcp_approx_ftz_f(x);
}
/* mad.lo.cc, then madc.hi: the 64 bits of a product plus `c`. */
typedef struct {
  uint32_t low, high;
} twin_words;
void twin_asm_mad_lo_cc_u32_madc_hi_u32_0(twin_words *out, uint32_t a,
                                          uint32_t b, uint32_t c) {
  uint64_t result = (uint64_t)a * b + c;
  out->low = (uint32_t)result;
  out->high = (uint32_t)(result >> 32);
}

/* Approximate on a GPU; rounded correctly here. */
double twin_asm_rsqrt_approx_ftz_f64(double x) { return 1 / sqrt(x); }

/* 128 bits in carry chains of 32: libdevice reduces large angles of f64 with
 * them. */
typedef struct {
  uint64_t low, high;
} twin_longs;
typedef unsigned __int128 twin_wide;

static void twin_split(twin_longs *out, twin_wide value) {
  out->low = (uint64_t)value;
  out->high = (uint64_t)(value >> 64);
}
static twin_wide twin_join(uint64_t low, uint64_t high) {
  return (twin_wide)high << 64 | low;
}
/* clang-format off */
void twin_asm_reg_u32_r0_r1_r2_r3_alo_ahi_blo_bhi_clo_chi_mov_b64_alo_ahi_mov_b64_blo_bhi_mov_b64_clo_chi_mad_lo_cc_u32_r0_alo_blo_clo_madc_hi_cc_u32_r1_alo_blo_chi_madc_hi_u32_r2_alo_bhi_0_mad_lo_cc_u32_r1_alo_bhi_r1_madc_hi_cc_u32_r2_ahi_blo_r2_madc_hi_u32_r3_ahi_bhi_0_mad_lo_cc_u32_r1_ahi_blo_r1_madc_lo_cc_u32_r2_ahi_bhi_r2_addc_u32_r3_r3_0_mov_b64_r0_r1_mov_b64_r2_r3(
    twin_longs *out, uint64_t a, uint64_t b, uint64_t c) {
  twin_split(out, (twin_wide)a * b + c);
}
void twin_asm_reg_u32_r0_r1_r2_r3_alo_ahi_blo_bhi_mov_b64_alo_ahi_mov_b64_blo_bhi_mul_lo_u32_r0_alo_blo_mul_hi_u32_r1_alo_blo_mad_lo_cc_u32_r1_alo_bhi_r1_madc_hi_u32_r2_alo_bhi_0_mad_lo_cc_u32_r1_ahi_blo_r1_madc_hi_cc_u32_r2_ahi_blo_r2_madc_hi_u32_r3_ahi_bhi_0_mad_lo_cc_u32_r2_ahi_bhi_r2_addc_u32_r3_r3_0_mov_b64_r0_r1_mov_b64_r2_r3(
    twin_longs *out, uint64_t a, uint64_t b) {
  twin_split(out, (twin_wide)a * b);
}
void twin_asm_reg_u32_r0_r1_r2_r3_a0_a1_a2_a3_b0_b1_b2_b3_mov_b64_a0_a1_mov_b64_a2_a3_mov_b64_b0_b1_mov_b64_b2_b3_add_cc_u32_r0_a0_b0_addc_cc_u32_r1_a1_b1_addc_cc_u32_r2_a2_b2_addc_u32_r3_a3_b3_mov_b64_r0_r1_mov_b64_r2_r3(
    twin_longs *out, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  twin_split(out, twin_join(a, b) + twin_join(c, d));
}
void twin_asm_reg_u32_r0_r1_r2_r3_a0_a1_a2_a3_b0_b1_b2_b3_mov_b64_a0_a1_mov_b64_a2_a3_mov_b64_b0_b1_mov_b64_b2_b3_sub_cc_u32_r0_a0_b0_subc_cc_u32_r1_a1_b1_subc_cc_u32_r2_a2_b2_subc_u32_r3_a3_b3_mov_b64_r0_r1_mov_b64_r2_r3(
    twin_longs *out, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  twin_split(out, twin_join(a, b) - twin_join(c, d));
}
/* clang-format on */
