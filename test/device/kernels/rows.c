/* rows.c - A row reduction: y[row] = sum of (x - max of the row). One block of
 * 64 threads a row of 128. -DOMIT=N leaves out barrier N. */
#include "Device.h"

#ifndef OMIT
#define OMIT 0
#endif
#define BARRIER(number)                                                        \
  if (OMIT != number)                                                          \
  __nvvm_bar_sync(0)

static SHARED float parts[2];

static float larger(float a, float b) { return a > b ? a : b; }

KERNEL row_range(const float *x, float *y) {
  int thread = THREAD, lane = thread % 32, warp = thread / 32;
  const float *row = x + BLOCK * 128;
  float most = larger(row[thread], row[thread + 64]);
  for (int by = 16; by > 0; by /= 2)
    most = larger(most, __nvvm_shfl_sync_bfly_f32(-1, most, by, 31));
  if (lane == 0)
    parts[warp] = most;
  BARRIER(1);
  most = larger(parts[0], parts[1]);
  BARRIER(2); /* parts is written again */
  float sum = (row[thread] - most) + (row[thread + 64] - most);
  for (int by = 16; by > 0; by /= 2)
    sum = SUM_LANES(sum, by);
  if (lane == 0)
    parts[warp] = sum;
  BARRIER(3);
  if (thread == 0)
    y[BLOCK] = parts[0] + parts[1];
}
