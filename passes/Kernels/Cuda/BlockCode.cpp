//===- BlockCode.cpp - Code for blocks of compressed gradients ------------===//

#include "passes/Kernels/Cuda/BlockCode.h"
#include "passes/Kernels/Cuda/Distribute.h"
#include "runtime/include/rt_cuda.h"

using namespace mlir;
using namespace mgq::kernels;

using Compare = arith::CmpIPredicate;

BlockCode::BlockCode(OpBuilder &b, Location loc, BlockFormat format, Value lane,
                     Value entry, Value first)
    : b(b), s(b, loc), format(format), word(b.getI32Type()),
      single(b.getF32Type()), lane(lane) {
  auto field = [&](size_t at, Type type) -> Value {
    Value address =
        LLVM::GEPOp::create(b, loc, entry.getType(), b.getI8Type(), entry,
                            ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(at)});
    return LLVM::LoadOp::create(b, loc, type, address);
  };
  value = field(offsetof(mgq_cuda_block, value), b.getI64Type());
  offset = s.sub(field(offsetof(mgq_cuda_block, byte), b.getI64Type()), first);
  count = field(offsetof(mgq_cuda_block, count), word);
  groups = field(offsetof(mgq_cuda_block, groups), word);
  index = shiftLeft(lane, 3);
  firstGroup = shiftLeft(lane, 1);
}

//===----------------------------------------------------------------------===//
// Tools
//===----------------------------------------------------------------------===//

Value BlockCode::shiftLeft(Value a, int64_t bits) {
  return arith::ShLIOp::create(b, s.loc, a, i32(bits));
}

Value BlockCode::shiftRight(Value a, int64_t bits) {
  return arith::ShRUIOp::create(b, s.loc, a, i32(bits));
}

Value BlockCode::bitcast(Value a, Type type) {
  return arith::BitcastOp::create(b, s.loc, type, a);
}

Value BlockCode::less(Value a, Value c) {
  return arith::CmpIOp::create(b, s.loc, Compare::slt, a, c);
}

Value BlockCode::equal(Value a, Value c) {
  return arith::CmpIOp::create(b, s.loc, Compare::eq, a, c);
}

BlockCode::Results BlockCode::branch(Value condition, TypeRange types,
                                     Branch yes, Branch no) {
  auto op = scf::IfOp::create(b, s.loc, types, condition,
                              /*addThenBlock=*/true, /*addElseBlock=*/true);
  auto fill = [&](Block *block, Branch body) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToEnd(block);
    Results results = body();
    scf::YieldOp::create(b, s.loc, results);
  };
  fill(op.thenBlock(), yes);
  fill(op.elseBlock(), no);
  return op.getResults();
}

/// What `yes` gives, or zero.
Value BlockCode::valueIf(Value condition, Type type,
                         llvm::function_ref<Value()> yes) {
  return branch(
      condition, type, [&] { return Results{yes()}; },
      [&] { return Results{s.constant(type, 0)}; })[0];
}

void BlockCode::doIf(Value condition, llvm::function_ref<void()> yes) {
  branch(
      condition, {}, [&] { return yes(), Results(); },
      [] { return Results(); });
}

/// `base`, `offset` (i32 or i64) and `more` bytes on.
Value BlockCode::moved(Value base, Value offset, int64_t more) {
  Value there = LLVM::GEPOp::create(b, s.loc, base.getType(), b.getI8Type(),
                                    base, ArrayRef<LLVM::GEPArg>{offset});
  if (!more)
    return there;
  return LLVM::GEPOp::create(
      b, s.loc, base.getType(), b.getI8Type(), there,
      ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(more)});
}

/// Values at an address that is a multiple of all their bytes.
BlockCode::Results BlockCode::loadVector(Value address, Type element,
                                         int64_t size) {
  unsigned bytes = size * element.getIntOrFloatBitWidth() / 8;
  if (size == 1)
    return {LLVM::LoadOp::create(b, s.loc, element, address, bytes)};
  Value all = LLVM::LoadOp::create(b, s.loc, VectorType::get(size, element),
                                   address, bytes);
  Results values;
  for (int64_t i = 0; i < size; ++i)
    values.push_back(LLVM::ExtractElementOp::create(b, s.loc, all, i32(i)));
  return values;
}

void BlockCode::storeVector(ArrayRef<Value> values, Value address) {
  Type element = values.front().getType();
  auto size = static_cast<int64_t>(values.size());
  unsigned bytes = size * element.getIntOrFloatBitWidth() / 8;
  Value all = values.front();
  if (size > 1) {
    all = LLVM::UndefOp::create(b, s.loc, VectorType::get(size, element));
    for (int64_t i = 0; i < size; ++i)
      all = LLVM::InsertElementOp::create(b, s.loc, all, values[i], i32(i));
  }
  LLVM::StoreOp::create(b, s.loc, all, address, bytes);
}

/// `size` bytes at any address, the first in the low bits.
Value BlockCode::loadBytes(Value address, int64_t size) {
  Value all;
  for (int64_t i = 0; i < size; ++i) {
    Value byte = LLVM::LoadOp::create(b, s.loc, b.getI8Type(),
                                      moved(address, i32(i)), /*alignment=*/1);
    byte = shiftLeft(arith::ExtUIOp::create(b, s.loc, word, byte), 8 * i);
    all = all ? s.lor(all, byte) : byte;
  }
  return all;
}

void BlockCode::storeBytes(Value bits, Value address, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    Value byte = arith::TruncIOp::create(b, s.loc, b.getI8Type(),
                                         shiftRight(bits, 8 * i));
    LLVM::StoreOp::create(b, s.loc, byte, moved(address, i32(i)),
                          /*alignment=*/1);
  }
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

LaneValues BlockCode::loadValues(Value block) {
  Value mine = moved(block, shiftLeft(index, 2));
  SmallVector<Type> types(8, single);
  Results loaded = branch(
      s.compare(nn::ComparePredicate::Le, s.add(index, i32(8)), count), types,
      [&] {
        Results values = loadVector(mine, single, 4);
        values.append(loadVector(moved(mine, i32(16)), single, 4));
        return values;
      },
      [&] {
        Results values;
        for (int64_t i = 0; i < 8; ++i)
          values.push_back(
              valueIf(less(s.add(index, i32(i)), count), single, [&] {
                return loadVector(moved(mine, i32(4 * i)), single, 1)[0];
              }));
        return values;
      });
  LaneValues values;
  llvm::copy(loaded, values.begin());
  return values;
}

void BlockCode::storeValues(const LaneValues &values, Value block) {
  Value mine = moved(block, shiftLeft(index, 2));
  ArrayRef<Value> all(values.data(), values.size());
  branch(
      s.compare(nn::ComparePredicate::Le, s.add(index, i32(8)), count), {},
      [&] {
        storeVector(all.take_front(4), mine);
        storeVector(all.drop_front(4), moved(mine, i32(16)));
        return Results();
      },
      [&] {
        for (int64_t i = 0; i < 8; ++i)
          doIf(less(s.add(index, i32(i)), count),
               [&] { storeVector(all[i], moved(mine, i32(4 * i))); });
        return Results();
      });
}

//===----------------------------------------------------------------------===//
// Encoding
//===----------------------------------------------------------------------===//

/// The upper half of f32, rounded to nearest even; a NaN stays one.
Value BlockCode::bf16Of(Value bits) {
  Value upper = shiftRight(bits, 16), odd = s.land(upper, i32(1));
  Value rounded = shiftRight(s.add(s.add(bits, i32(0x7fff)), odd), 16);
  Value isNan = less(i32(0x7f800000), s.land(bits, i32(0x7fffffff)));
  return s.select(isNan, s.lor(upper, i32(0x40)), rounded);
}

/// Two of f32's bits as bf16.
Value BlockCode::pairOf(Value low, Value high) {
  return s.lor(bf16Of(low), shiftLeft(bf16Of(high), 16));
}

/// A value is kept if it loses against less than two others; of equal
/// magnitudes the later one loses.
BlockCode::Kept BlockCode::choose(ArrayRef<Value> bits) {
  SmallVector<Value> magnitudes, defeats(4, i32(0)), keeps;
  for (Value value : bits)
    magnitudes.push_back(s.land(value, i32(0x7fffffff)));
  auto count = [&](Value &sum, Value condition) {
    sum = s.add(sum, arith::ExtUIOp::create(b, s.loc, word, condition));
  };
  for (int i = 0; i < 4; ++i)
    for (int j = i + 1; j < 4; ++j) {
      Value firstLoses = less(magnitudes[i], magnitudes[j]);
      count(defeats[i], firstLoses);
      count(defeats[j], s.lnot(firstLoses));
    }
  for (Value number : defeats)
    keeps.push_back(less(number, i32(2)));
  auto select = [&](Value zero, Value one, Value two) {
    return s.select(keeps[0], zero, s.select(keeps[1], one, two));
  };
  auto selectLast = [&](Value three, Value two, Value one) {
    return s.select(keeps[3], three, s.select(keeps[2], two, one));
  };
  return {select(bits[0], bits[1], bits[2]),
          selectLast(bits[3], bits[2], bits[1]),
          s.lor(select(i32(0), i32(1), i32(2)),
                selectLast(i32(12), i32(8), i32(4)))};
}

/// The largest magnitude of the block's groups / 127. All lanes take part.
Value BlockCode::scaleOf(ArrayRef<Kept> kept) {
  Value largest = i32(0);
  for (auto [group, its] : llvm::enumerate(kept)) {
    Value most = s.max(s.land(its.first, i32(0x7fffffff)),
                       s.land(its.second, i32(0x7fffffff)));
    largest = s.max(largest, s.select(hasGroup(group), most, i32(0)));
  }
  for (int64_t mask = kWarp / 2; mask > 0; mask /= 2) {
    Value other =
        NVVM::ShflOp::create(b, s.loc, word, i32(-1), largest, i32(mask),
                             i32(kWarp - 1), NVVM::ShflKind::bfly, UnitAttr());
    largest = s.max(largest, other);
  }
  return arith::DivFOp::create(b, s.loc, bitcast(largest, single),
                               s.constant(single, 127));
}

/// value / scale, rounded to nearest even: |value / scale| < 2^22.
Value BlockCode::int8Of(Value bits, Value scale) {
  Value magic = s.constant(single, 12582912.0); // 1.5 * 2^23
  Value ratio = arith::DivFOp::create(b, s.loc, bitcast(bits, single), scale);
  Value even = s.sub(s.add(ratio, magic), magic);
  Value number = arith::FPToSIOp::create(b, s.loc, word, even);
  return s.min(s.max(number, i32(-127)), i32(127));
}

/// A scale that is zero, or not finite, alone makes what it is a factor of so.
Value BlockCode::int8Pair(const Kept &kept, Value scale) {
  Value bits = bitcast(scale, word), exponent = i32(0x7f800000);
  Value pair =
      s.lor(s.land(int8Of(kept.first, scale), i32(255)),
            shiftLeft(s.land(int8Of(kept.second, scale), i32(255)), 8));
  pair = s.select(equal(bits, i32(0)), i32(0), pair);
  return s.select(equal(s.land(bits, exponent), exponent), i32(0x0101), pair);
}

LaneCode BlockCode::pack(const LaneValues &values) {
  SmallVector<Value> bits;
  for (Value value : values)
    bits.push_back(bitcast(value, word));
  LaneCode code;
  for (size_t i = 0; i < code.dense.size(); ++i)
    code.dense[i] = pairOf(bits[2 * i], bits[2 * i + 1]);
  if (!isSparse())
    return code;
  Kept kept[2];
  for (int group = 0; group < 2; ++group)
    kept[group] = choose(ArrayRef<Value>(bits).slice(4 * group, 4));
  if (hasScale())
    code.scale = scaleOf(kept);
  for (int group = 0; group < 2; ++group)
    code.kept[group] = hasScale()
                           ? int8Pair(kept[group], code.scale)
                           : pairOf(kept[group].first, kept[group].second);
  // Half a byte without a group is 0.
  code.positions =
      s.lor(kept[0].positions,
            s.select(hasGroup(1), shiftLeft(kept[1].positions, 4), i32(0)));
  return code;
}

/// The two values that are sent of a group, as bits of f32.
std::pair<Value, Value> BlockCode::keptValues(const LaneCode &code, int group) {
  Value kept = code.kept[group];
  if (!hasScale())
    return {shiftLeft(kept, 16), s.land(kept, i32(0xffff0000))};
  auto value = [&](int64_t left) {
    Value number =
        arith::ShRSIOp::create(b, s.loc, shiftLeft(kept, left), i32(24));
    Value wide = arith::SIToFPOp::create(b, s.loc, single, number);
    return bitcast(s.mul(wide, code.scale), word);
  };
  return {value(24), value(16)};
}

LaneValues BlockCode::unpack(const LaneCode &code) {
  LaneValues values;
  for (size_t i = 0; i < values.size(); ++i) {
    Value pair = code.dense[i / 2];
    values[i] = i % 2 ? s.land(pair, i32(0xffff0000)) : shiftLeft(pair, 16);
  }
  for (int group = 0; group < 2 && isSparse(); ++group) {
    auto [first, second] = keptValues(code, group);
    Value positions = s.land(shiftRight(code.positions, 4 * group), i32(15));
    Value ofFirst = s.land(positions, i32(3)),
          ofSecond = shiftRight(positions, 2);
    for (int i = 0; i < 4; ++i) {
      Value spread = s.select(equal(ofSecond, i32(i)), second, i32(0));
      spread = s.select(equal(ofFirst, i32(i)), first, spread);
      Value &value = values[4 * group + i];
      value = s.select(hasGroup(group), spread, value);
    }
  }
  for (Value &value : values)
    value = bitcast(value, single);
  return values;
}

//===----------------------------------------------------------------------===//
// Bytes
//===----------------------------------------------------------------------===//

/// Whether value `i` of the lane's is one that is in no group.
Value BlockCode::hasDense(int i) {
  Value isInside = less(s.add(index, i32(i)), count);
  return isSparse() ? s.land(isInside, s.lnot(hasGroup(i / 4))) : isInside;
}

/// Whether words have all of the lane's part.
Value BlockCode::isWhole() {
  int64_t alignment = format == BlockFormat::BF16 ? 16 : 2 * keptBytes();
  Value odd = s.land(
      offset, s.constant(offset.getType(), static_cast<double>(alignment - 1)));
  Value isAligned = equal(odd, s.constant(offset.getType(), 0));
  Value isFull = isSparse() ? hasGroup(1)
                            : s.compare(nn::ComparePredicate::Le,
                                        s.add(index, i32(8)), count);
  return s.land(isAligned, isFull);
}

Value BlockCode::blockAt(Value bytes) { return moved(bytes, offset); }

/// Of the lane's first group.
Value BlockCode::keptAt(Value bytes) {
  return moved(blockAt(bytes), s.mul(firstGroup, i32(keptBytes())),
               hasScale() ? 4 : 0);
}

Value BlockCode::positionsAt(Value bytes) {
  return moved(blockAt(bytes), s.add(s.mul(groups, i32(keptBytes())), lane),
               hasScale() ? 4 : 0);
}

/// Of the lane's first value, if that is in no group.
Value BlockCode::denseAt(Value bytes) {
  Value block = blockAt(bytes), mine = shiftLeft(index, 1);
  if (!isSparse())
    return moved(block, mine);
  // Groups take their values' place.
  Value ofGroups = s.add(s.mul(groups, i32(keptBytes())),
                         shiftRight(s.add(groups, i32(1)), 1));
  if (hasScale())
    ofGroups = s.add(ofGroups, s.select(hasGroups(), i32(4), i32(0)));
  return moved(block, s.add(ofGroups, s.sub(mine, shiftLeft(groups, 3))));
}

LaneCode BlockCode::loadWords(Value bytes) {
  LaneCode code;
  code.dense.fill(i32(0));
  if (!isSparse()) {
    llvm::copy(loadVector(denseAt(bytes), word, 4), code.dense.begin());
    return code;
  }
  code.positions = loadBytes(positionsAt(bytes), 1);
  Results words = loadVector(keptAt(bytes), word, hasScale() ? 1 : 2);
  if (!hasScale()) {
    code.kept = {words[0], words[1]};
    return code;
  }
  code.kept = {words[0], shiftRight(words[0], 16)};
  code.scale = loadVector(blockAt(bytes), single, 1)[0];
  return code;
}

LaneCode BlockCode::loadParts(Value bytes) {
  LaneCode code;
  Value dense = denseAt(bytes);
  for (int i = 0; i < 8; ++i) {
    Value half = valueIf(hasDense(i), word, [&] {
      return loadBytes(moved(dense, i32(2 * i)), 2);
    });
    Value &pair = code.dense[i / 2];
    pair = i % 2 ? s.lor(pair, shiftLeft(half, 16)) : half;
  }
  if (!isSparse())
    return code;
  for (int group = 0; group < 2; ++group)
    code.kept[group] = valueIf(hasGroup(group), word, [&] {
      return loadBytes(moved(keptAt(bytes), i32(group * keptBytes())),
                       keptBytes());
    });
  code.positions = valueIf(hasGroup(0), word,
                           [&] { return loadBytes(positionsAt(bytes), 1); });
  if (hasScale())
    code.scale = bitcast(valueIf(hasGroups(), word,
                                 [&] { return loadBytes(blockAt(bytes), 4); }),
                         single);
  return code;
}

SmallVector<Value> BlockCode::partsOf(const LaneCode &code) const {
  SmallVector<Value> parts(code.dense.begin(), code.dense.end());
  if (isSparse())
    parts.append({code.kept[0], code.kept[1], code.positions});
  if (hasScale())
    parts.push_back(code.scale);
  return parts;
}

LaneCode BlockCode::codeOf(ArrayRef<Value> parts) const {
  LaneCode code;
  llvm::copy(parts.take_front(4), code.dense.begin());
  if (isSparse()) {
    code.kept = {parts[4], parts[5]};
    code.positions = parts[6];
  }
  if (hasScale())
    code.scale = parts[7];
  return code;
}

LaneCode BlockCode::load(Value bytes) {
  SmallVector<Type> types(isSparse() ? 7 : 4, word);
  if (hasScale())
    types.push_back(single);
  return codeOf(branch(
      isWhole(), types, [&] { return partsOf(loadWords(bytes)); },
      [&] { return partsOf(loadParts(bytes)); }));
}

void BlockCode::storeWords(const LaneCode &code, Value bytes) {
  if (!isSparse())
    return storeVector(code.dense, denseAt(bytes));
  storeBytes(code.positions, positionsAt(bytes), 1);
  if (!hasScale())
    return storeVector(code.kept, keptAt(bytes));
  storeVector(s.lor(code.kept[0], shiftLeft(code.kept[1], 16)), keptAt(bytes));
  doIf(equal(lane, i32(0)), [&] { storeVector(code.scale, blockAt(bytes)); });
}

void BlockCode::storeParts(const LaneCode &code, Value bytes) {
  Value dense = denseAt(bytes);
  for (int i = 0; i < 8; ++i)
    doIf(hasDense(i), [&] {
      storeBytes(i % 2 ? shiftRight(code.dense[i / 2], 16) : code.dense[i / 2],
                 moved(dense, i32(2 * i)), 2);
    });
  if (!isSparse())
    return;
  for (int group = 0; group < 2; ++group)
    doIf(hasGroup(group), [&] {
      storeBytes(code.kept[group],
                 moved(keptAt(bytes), i32(group * keptBytes())), keptBytes());
    });
  doIf(hasGroup(0), [&] { storeBytes(code.positions, positionsAt(bytes), 1); });
  if (hasScale())
    doIf(s.land(equal(lane, i32(0)), hasGroups()),
         [&] { storeBytes(bitcast(code.scale, word), blockAt(bytes), 4); });
}

void BlockCode::store(const LaneCode &code, Value bytes) {
  branch(
      isWhole(), {}, [&] { return storeWords(code, bytes), Results(); },
      [&] { return storeParts(code, bytes), Results(); });
}
