//===- LowerDropout.cpp - Dropout to loops --------------------------------===//
//
// One call of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011) gives the bits of four elements. The inner loop runs
// over such groups and has neither branches nor carried values: LLVM makes
// vectors of it. Blocks of groups are spread over threads.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include <array>

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;
using P = nn::ComparePredicate;

/// Elements that one call of the generator serves.
static constexpr int64_t kGroup = 4;
/// Groups that a thread takes at once.
static constexpr int64_t kBlock = 1024;

namespace {
/// Writes the code of one dropout, on buffers [samples, elements].
class DropoutEmitter {
public:
  DropoutEmitter(LoopBuilder &b, nn::DropoutOp op, ValueRange in, Value out)
      : b(b), input(in[0]), key(in[1]), output(out),
        type(computeType(elementOf(out))), word(b.builder.getI32Type()),
        wide(b.builder.getI64Type()),
        kept(1 - op.getRatio().convertToDouble()) {}

  void emit();

private:
  using Words = std::array<Value, kGroup>;

  Value wordOf(uint32_t value);
  Value keyPart(int64_t index, bool high = false);
  void readKey();
  Words random(Value group, Value sample);
  void drop(Value sample, Value element, Value bits);
  void group(Value sample, Value group, int64_t count);

  LoopBuilder &b;
  Value input, key, output;
  Type type, word, wide;
  double kept;
  /// What the key says, and how kept elements are scaled.
  Value seedLow, seedHigh, step, first, number, off, scale;
};
} // namespace

Value DropoutEmitter::wordOf(uint32_t value) {
  return b.constant(word, static_cast<int32_t>(value));
}

/// Half of an element of the key.
Value DropoutEmitter::keyPart(int64_t index, bool high) {
  Value value = b.load(key, b.index(index));
  if (high)
    value =
        arith::ShRUIOp::create(b.builder, b.loc, value, b.constant(wide, 32));
  return arith::TruncIOp::create(b.builder, b.loc, word, value);
}

void DropoutEmitter::readKey() {
  seedLow = keyPart(0);
  seedHigh = keyPart(0, /*high=*/true);
  step = keyPart(1);
  first = keyPart(2);
  number = keyPart(3);
  off = b.compare(P::Eq, number, wordOf(-1));
  scale = b.select(off, b.constant(type, 1),
                   b.constant(type, kept > 0 ? 1 / kept : 0));
}

/// The four words of a group.
DropoutEmitter::Words DropoutEmitter::random(Value group, Value sample) {
  Words c{b.fromIndex(group, word), b.add(first, b.fromIndex(sample, word)),
          step, number};
  auto exclusiveOr = [&](Value x, Value y) -> Value {
    return arith::XOrIOp::create(b.builder, b.loc, x, y);
  };
  // High and low word of a product.
  auto product = [&](Value x, uint32_t factor) {
    Value full = b.mul(arith::ExtUIOp::create(b.builder, b.loc, wide, x),
                       b.constant(wide, factor));
    Value high =
        arith::ShRUIOp::create(b.builder, b.loc, full, b.constant(wide, 32));
    return std::make_pair(
        Value(arith::TruncIOp::create(b.builder, b.loc, word, high)),
        Value(arith::TruncIOp::create(b.builder, b.loc, word, full)));
  };
  for (uint32_t round = 0; round < 10; ++round) {
    auto [highA, lowA] = product(c[0], 0xD2511F53);
    auto [highB, lowB] = product(c[2], 0xCD9E8D57);
    Value keyLow = b.add(seedLow, wordOf(round * 0x9E3779B9));
    Value keyHigh = b.add(seedHigh, wordOf(round * 0xBB67AE85));
    c = {exclusiveOr(exclusiveOr(highB, c[1]), keyLow), lowB,
         exclusiveOr(exclusiveOr(highA, c[3]), keyHigh), lowA};
  }
  return c;
}

/// Stores one element, given its random bits.
void DropoutEmitter::drop(Value sample, Value element, Value bits) {
  auto limit = static_cast<uint32_t>(std::floor(std::ldexp(kept, 32)));
  Value stays = b.lor(off, b.compare(P::Lt, bits, wordOf(limit), true));
  Value scaled = b.mul(b.load(input, {sample, element}), scale);
  b.store(b.select(stays, scaled, b.constant(type, 0)), output,
          {sample, element});
}

/// Drops the first `count` elements of a group.
void DropoutEmitter::group(Value sample, Value group, int64_t count) {
  Words bits = random(group, sample);
  Value start = b.mul(group, b.index(kGroup));
  for (int64_t i = 0; i < count; ++i)
    drop(sample, b.add(start, b.index(i)), bits[i]);
}

void DropoutEmitter::emit() {
  auto shape = cast<MemRefType>(output.getType()).getShape();
  int64_t groups = shape[1] / kGroup, rest = shape[1] % kGroup;
  int64_t blocks = std::max<int64_t>((groups + kBlock - 1) / kBlock, 1);
  b.parallel({shape[0], blocks}, [&](ValueRange at) {
    readKey();
    Value sample = at[0], begin = b.mul(at[1], b.index(kBlock));
    Value end = b.add(begin, b.index(kBlock));
    if (blocks * kBlock != groups)
      end = arith::MinSIOp::create(b.builder, b.loc, end, b.index(groups));
    auto loop = scf::ForOp::create(b.builder, b.loc, begin, end, b.index(1));
    {
      OpBuilder::InsertionGuard guard(b.builder);
      b.builder.setInsertionPoint(loop.getBody()->getTerminator());
      group(sample, loop.getInductionVar(), kGroup);
    }
    if (rest)
      b.when(b.compare(P::Eq, end, b.index(groups)),
             [&] { group(sample, b.index(groups), rest); });
  });
}

LogicalResult kernels::lower(Lowering &l, nn::DropoutOp op) {
  Value input = l.get(op.getInput());
  SmallVector<int64_t> shape(shapeOf(input));
  int64_t samples = op.getSamples();
  SmallVector<int64_t> rows{samples,
                            tensorType(input).getNumElements() / samples};
  Value result = l.loops({l.reshape(input, rows), l.get(op.getKey())},
                         l.type(rows, elementOf(op.getResult())),
                         [&](LoopBuilder &b, ValueRange in, ValueRange out) {
                           DropoutEmitter(b, op, in, out[0]).emit();
                         })[0];
  l.set(op, l.reshape(result, shape));
  return success();
}
