//===- EvaluateDropout.cpp - Dropout --------------------------------------===//

#include "dialects/NN/Interpreter/Evaluate.h"

#include <array>
#include <cmath>

using namespace mlir;
using namespace mgq::nn;

/// Philox4x32-10 (Salmon et al., SC 2011).
static std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t(0xD2511F53) * counter[0];
    uint64_t b = uint64_t(0xCD9E8D57) * counter[2];
    counter = {uint32_t(b >> 32) ^ counter[1] ^ key[0], uint32_t(b),
               uint32_t(a >> 32) ^ counter[3] ^ key[1], uint32_t(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

Tensor mgq::nn::evaluate(DropoutOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()], &key = frame[op.getKey()];
  auto word = [&](int i) { return uint64_t(key.data[i].whole); };
  if (key.data[3].whole == -1)
    return x;
  double kept = 1 - op.getRatio().convertToDouble();
  double scale = kept > 0 ? 1 / kept : 0;
  if (!x.type.getElementType().isF64())
    scale = float(scale);
  double limit = std::floor(std::ldexp(kept, 32));
  Tensor y = likeValue(op.getResult());
  int64_t perSample = y.size() / op.getSamples();
  for (int64_t i = 0; i < y.size(); ++i) {
    int64_t element = i % perSample, sample = i / perSample;
    auto bits = philox({uint32_t(element / 4), uint32_t(word(2) + sample),
                        uint32_t(word(1)), uint32_t(word(3))},
                       {uint32_t(word(0)), uint32_t(word(0) >> 32)});
    if (double(bits[element % 4]) < limit)
      y.data[i].real = x.data[i].real * scale;
  }
  return y;
}
