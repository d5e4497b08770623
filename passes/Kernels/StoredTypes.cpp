//===- StoredTypes.cpp - Operands that are narrower than f32 --------------===//

#include "passes/Kernels/StoredTypes.h"

using namespace mlir;
using namespace mgq::kernels;

std::optional<Stored> mgq::kernels::storedOf(Type element) {
  if (element.isF32())
    return Stored::f32;
  if (element.isBF16())
    return Stored::bf16;
  if (element.isF16())
    return Stored::f16;
  return std::nullopt;
}

Type mgq::kernels::elementType(KernelBuilder &kb, Stored stored) {
  OpBuilder &b = kb.getOps();
  return stored == Stored::f32    ? kb.f32()
         : stored == Stored::bf16 ? Type(b.getI16Type())
                                  : Type(b.getF16Type());
}

Type mgq::kernels::floatType(KernelBuilder &kb, Stored stored) {
  OpBuilder &b = kb.getOps();
  return stored == Stored::f32    ? b.getF32Type()
         : stored == Stored::bf16 ? Type(b.getBF16Type())
                                  : Type(b.getF16Type());
}

std::string mgq::kernels::suffixOf(Stored stored, StringRef prefix) {
  if (stored == Stored::f32)
    return "";
  return (prefix + (stored == Stored::bf16 ? "bf16" : "f16")).str();
}

/// A vector of lanes elements.
static VectorType vectorOf(KernelBuilder &kb, Type element) {
  return VectorType::get({kb.getLanes()}, element);
}

/// The same integer in every lane of 32 bits.
static Value lanesOf(KernelBuilder &kb, uint32_t bits) {
  auto type = vectorOf(kb, kb.getOps().getI32Type());
  auto attr = SplatElementsAttr::get(type, APInt(32, bits));
  return arith::ConstantOp::create(kb.getOps(), kb.getLoc(), attr);
}

/// Bits as f32, or f32 as bits.
static Val reinterpret(KernelBuilder &kb, Type element, Value value) {
  return Val(kb, arith::BitcastOp::create(kb.getOps(), kb.getLoc(),
                                          vectorOf(kb, element), value));
}

static Val widen(KernelBuilder &kb, Stored stored, Val narrow) {
  OpBuilder &b = kb.getOps();
  Location loc = kb.getLoc();
  if (stored == Stored::f32)
    return narrow;
  if (stored == Stored::f16)
    return Val(kb, arith::ExtFOp::create(b, loc, kb.vec(), Value(narrow)));
  Value wide = arith::ExtUIOp::create(b, loc, vectorOf(kb, b.getI32Type()),
                                      Value(narrow));
  return reinterpret(kb, kb.f32(),
                     arith::ShLIOp::create(b, loc, wide, lanesOf(kb, 16)));
}

Val mgq::kernels::loadWide(KernelBuilder &kb, Stored stored, Val pointer) {
  return widen(kb, stored,
               kb.load(vectorOf(kb, elementType(kb, stored)), pointer));
}

Val mgq::kernels::maskedLoadWide(KernelBuilder &kb, Stored stored, Val pointer,
                                 Val mask) {
  return widen(
      kb, stored,
      kb.maskedLoad(pointer, mask, vectorOf(kb, elementType(kb, stored))));
}

SmallVector<Val, 2> mgq::kernels::loadPair(KernelBuilder &kb, Stored stored,
                                           Val pointer) {
  if (stored != Stored::bf16)
    return {loadWide(kb, stored, pointer),
            loadWide(kb, stored,
                     kb.at(pointer, kb.getLanes(), elementType(kb, stored)))};
  OpBuilder &b = kb.getOps();
  Location loc = kb.getLoc();
  Value pairs = kb.load(vectorOf(kb, b.getI32Type()), pointer);
  Value low = arith::ShLIOp::create(b, loc, pairs, lanesOf(kb, 16));
  Value high = arith::AndIOp::create(b, loc, pairs, lanesOf(kb, 0xffff0000));
  return {reinterpret(kb, kb.f32(), low), reinterpret(kb, kb.f32(), high)};
}

Val mgq::kernels::loadLow(KernelBuilder &kb, Val pointer) {
  OpBuilder &b = kb.getOps();
  Value bits = kb.load(b.getI16Type(), pointer);
  Value wide = arith::ExtUIOp::create(b, kb.getLoc(), b.getI32Type(), bits);
  return Val(kb, arith::BitcastOp::create(b, kb.getLoc(), kb.f32(), wide));
}

Val mgq::kernels::roundTo(KernelBuilder &kb, Stored stored, Val vector) {
  OpBuilder &b = kb.getOps();
  Location loc = kb.getLoc();
  if (stored == Stored::f32)
    return vector;
  if (stored == Stored::f16) {
    Value narrow = arith::TruncFOp::create(b, loc, vectorOf(kb, b.getF16Type()),
                                           Value(vector));
    return Val(kb, arith::ExtFOp::create(b, loc, kb.vec(), narrow));
  }
  // To the 16 upper bits: add half of what is cut, a bit less where the last
  // bit kept is 0, so that ties go to even.
  Value bits = reinterpret(kb, b.getI32Type(), vector);
  Value last = arith::AndIOp::create(
      b, loc, arith::ShRUIOp::create(b, loc, bits, lanesOf(kb, 16)),
      lanesOf(kb, 1));
  Value half = arith::AddIOp::create(b, loc, last, lanesOf(kb, 0x7fff));
  Value near =
      arith::AndIOp::create(b, loc, arith::AddIOp::create(b, loc, bits, half),
                            lanesOf(kb, 0xffff0000));
  // A NaN of low bits only would become infinity.
  Value quiet = arith::AndIOp::create(
      b, loc, arith::OrIOp::create(b, loc, bits, lanesOf(kb, 0x00400000)),
      lanesOf(kb, 0xffff0000));
  Value isNan = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::UNO,
                                      Value(vector), Value(vector));
  return reinterpret(kb, kb.f32(),
                     arith::SelectOp::create(b, loc, isNan, quiet, near));
}

void mgq::kernels::storePair(KernelBuilder &kb, Stored stored, Val low,
                             Val high, Val pointer) {
  OpBuilder &b = kb.getOps();
  Location loc = kb.getLoc();
  Type element = elementType(kb, stored);
  if (stored == Stored::bf16) {
    Type i32 = b.getI32Type();
    Value first = arith::ShRUIOp::create(b, loc, reinterpret(kb, i32, low),
                                         lanesOf(kb, 16));
    Value second = arith::AndIOp::create(b, loc, reinterpret(kb, i32, high),
                                         lanesOf(kb, 0xffff0000));
    return kb.store(Val(kb, arith::OrIOp::create(b, loc, first, second)),
                    pointer);
  }
  for (Val *value : {&low, &high})
    if (stored == Stored::f16)
      *value = Val(kb, arith::TruncFOp::create(b, loc, vectorOf(kb, element),
                                               Value(*value)));
  kb.store(low, pointer);
  kb.store(high, kb.at(pointer, kb.getLanes(), element));
}
