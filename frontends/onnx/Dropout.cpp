//===- Dropout.cpp - The operator that drops at random --------------------===//
//
// In evaluation mode it is nothing. In training mode it becomes nn.dropout with
// a key that is an input of the graph, made by the runtime; so dropout ops of
// equal layers differ in an operand only, and the layers stay one function. The
// operator's own `seed` is ignored: a run has one, --seed.
//
//===----------------------------------------------------------------------===//

#include "frontends/onnx/Registry.h"

#include <cmath>

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;

/// Nothing is dropped.
static Value pass(Node &n) {
  if (n.wantsOutput(1) && n.input(0))
    n.set(1, n.splat(1, shapeOf(n.input(0)), n.builder.getI1Type()));
  return n.input(0);
}

/// Whether a node drops, in which case `ratio` is set; nothing after a report.
static std::optional<bool> drops(Node &n, double &ratio) {
  if (n.opset < 12) {
    // Versions 7 and 10 leave the mode to who runs the graph: evaluation.
    ratio = n.getFloat("ratio", 0.5);
    return n.opset < 7 && n.getInt("is_test", 0) == 0 && ratio != 0;
  }
  Value training = n.input(2);
  if (!training)
    return false;
  std::optional<double> given = 0.5;
  if (n.input(1))
    given = n.constantFloat(n.input(1));
  if (given == 0.0)
    return false;
  MaybeInts flag = n.constantInts(training);
  if (!flag || flag->size() != 1) {
    n.fail("not supported yet: a training mode that is not known at compile "
           "time; export with it as a constant");
    return std::nullopt;
  }
  if (flag->front() == 0)
    return false;
  if (!given) {
    n.fail("not supported yet: a ratio that is not known at compile time; "
           "export with it as a constant");
    return std::nullopt;
  }
  ratio = *given;
  return true;
}

/// Elements at random: y, and which of them stay.
static Value dropAtRandom(Node &n, double ratio) {
  Value x = n.input(0);
  if (!(ratio >= 0 && ratio <= 1))
    return n.fail("has ratio " + Twine(std::to_string(ratio)) +
                  ", expected 0 to 1");
  // Ratios below 2^-32 drop nothing.
  if (std::floor(std::ldexp(1 - ratio, 32)) >= std::ldexp(1.0, 32))
    return pass(n);
  int64_t rows = rankOf(x) ? shapeOf(x)[0] : 1;
  if (!typeOf(x).hasStaticShape() || n.samples < 1 || rows % n.samples)
    return n.fail("not supported yet: dropout in training mode of a tensor "
                  "whose leading dimension, " +
                  Twine(rows) + ", is no multiple of the " + Twine(n.samples) +
                  " samples of a micro-batch; use a micro-batch of one sample, "
                  "or a ratio of 0 there");
  Value key = n.makeRandomKey();
  FloatAttr ratioAttr = n.builder.getF64FloatAttr(ratio);
  IntegerAttr samples = n.builder.getI64IntegerAttr(n.samples);
  if (n.wantsOutput(1)) {
    Value ones = n.splat(1, shapeOf(x), elementOf(x));
    Value left = n.make<nn::DropoutOp>(ones, key, ratioAttr, samples);
    n.set(1, n.compare(nn::ComparePredicate::Ne, left, n.scalarLike(0, x)));
  }
  return n.make<nn::DropoutOp>(x, key, ratioAttr, samples);
}

static Value importDropout(Node &n) {
  double ratio = 0;
  std::optional<bool> random = drops(n, ratio);
  if (!random || !n.input(0))
    return {};
  return *random && n.makeRandomKey ? dropAtRandom(n, ratio) : pass(n);
}

void mgq::onnx::registerDropout(Registry &r) { r["Dropout"] = importDropout; }
