//===- ToyModel.h - A hand-written program ----------------------*- C++ -*-===//
//
// Stands in for a generated object: a classifier of 2 samples a micro-batch.
//
//   logits[b, c] = embed[ids[b], c] + sum_k pixels[b, k] head[k, c]
//                  + bias[c] + bias[c] + frozen[c]
//   loss = sum over labels != -100 of -log softmax(logits[b])[labels[b]]
//
// embed [5, 4] F32, head stored [12, 4] F32 (canonical [4, 12]), bias [4] BF16
// (used twice), frozen [4] F32; all in toy.weights, in this order.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_TEST_RUNTIME_TOYMODEL_H
#define MGQ_TEST_RUNTIME_TOYMODEL_H

#include "runtime/include/rt.h"

namespace toy {
constexpr int batch = 2, classes = 4, words = 5, pixels = 12;
constexpr int microBatches = 2;
constexpr int64_t ignored = -100;

// Offsets in toy.weights.
constexpr int64_t embedAt = 0, headAt = 80, biasAt = 272, frozenAt = 280;
constexpr int64_t weightBytes = 296;

// What programs bring besides layers.
void adamw(float *parameter, const float *gradient, float *momentum,
           float *variance, const float *s, int64_t n);
double squaredNorm(const float *values, int64_t n);
void accumulate(float *sum, const float *values, int64_t n);
} // namespace toy

#endif // MGQ_TEST_RUNTIME_TOYMODEL_H
