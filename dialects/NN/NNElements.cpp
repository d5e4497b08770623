//===- NNElements.cpp - Elements of constants as bits ---------------------===//

#include "dialects/NN/NNElements.h"

#include "llvm/ADT/bit.h"
#include <cstring>

using namespace mlir;
using namespace mgq::nn;

/// Bytes of one element in a raw buffer (not for booleans, which are packed).
static size_t byteWidth(Type type) { return type.getIntOrFloatBitWidth() / 8; }

uint64_t mgq::nn::wrapWord(uint64_t word, IntegerType type) {
  unsigned width = type.getWidth();
  if (width >= 64)
    return word;
  uint64_t mask = (uint64_t(1) << width) - 1;
  word &= mask;
  if (width > 1 && !type.isUnsigned() && (word >> (width - 1)) != 0)
    word |= ~mask;
  return word;
}

std::optional<Elements> mgq::nn::readElements(Attribute attr) {
  auto dense = dyn_cast_or_null<DenseIntOrFPElementsAttr>(attr);
  if (!dense)
    return std::nullopt;
  auto type = dyn_cast<RankedTensorType>(dense.getType());
  if (!type)
    return std::nullopt;
  Elements result{type, dense.isSplat(), {}};
  auto integer = dyn_cast<IntegerType>(type.getElementType());
  if (integer && integer.getWidth() == 1) {
    if (result.splat) {
      result.words.push_back(dense.getSplatValue<bool>());
    } else {
      result.words.reserve(type.getNumElements());
      for (bool value : dense.getValues<bool>())
        result.words.push_back(value);
    }
    return result;
  }
  size_t width = byteWidth(type.getElementType());
  ArrayRef<char> raw = dense.getRawData();
  if (type.getNumElements() == 0)
    return result;
  if (width == 0 || width > 8 || raw.size() % width != 0)
    return std::nullopt;
  result.words.resize(raw.size() / width);
  for (size_t i = 0; i < result.words.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, raw.data() + i * width, width);
    result.words[i] = integer ? wrapWord(word, integer) : word;
  }
  return result;
}

DenseElementsAttr mgq::nn::writeElements(const Elements &elements) {
  Type type = elements.type.getElementType();
  // One value everywhere becomes a splat: masks often are, and it is small.
  bool equal = !elements.words.empty() && llvm::all_equal(elements.words);
  size_t count = elements.type.getNumElements() == 0 ? 0
                 : equal                             ? 1
                                                     : elements.words.size();
  if (type.isInteger(1)) {
    SmallVector<bool> values(elements.words.begin(),
                             elements.words.begin() + count);
    return DenseElementsAttr::get(elements.type, values);
  }
  size_t width = byteWidth(type);
  std::vector<char> raw(count * width);
  for (size_t i = 0; i < count; ++i)
    std::memcpy(raw.data() + i * width, &elements.words[i], width);
  return DenseElementsAttr::getFromRawBuffer(elements.type, raw);
}

double mgq::nn::floatOfWord(uint64_t word, FloatType type) {
  if (type.isF32())
    return llvm::bit_cast<float>(static_cast<uint32_t>(word));
  if (type.isF64())
    return llvm::bit_cast<double>(word);
  unsigned width = type.getWidth();
  return APFloat(type.getFloatSemantics(), APInt(width, word, false, true))
      .convertToDouble();
}

uint64_t mgq::nn::wordOfFloat(double value, FloatType type) {
  if (type.isF32())
    return llvm::bit_cast<uint32_t>(static_cast<float>(value));
  if (type.isF64())
    return llvm::bit_cast<uint64_t>(value);
  APFloat narrow(value);
  bool losesInfo = false;
  narrow.convert(type.getFloatSemantics(), APFloat::rmNearestTiesToEven,
                 &losesInfo);
  return narrow.bitcastToAPInt().getZExtValue();
}

SmallVector<int64_t> mgq::nn::rowMajor(ArrayRef<int64_t> shape) {
  SmallVector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

SmallVector<int64_t> mgq::nn::broadcastStrides(ArrayRef<int64_t> from,
                                               ArrayRef<int64_t> to) {
  SmallVector<int64_t> strides(to.size(), 0), own = rowMajor(from);
  size_t offset = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i)
    strides[offset + i] = from[i] == 1 ? 0 : own[i];
  return strides;
}
