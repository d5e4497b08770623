//===- NNElements.h - Elements of constants as bits -----------------------===//
//
// Folding works on the bits of elements, one 64-bit word each: an integer is
// extended by its sign (`iN`, a boolean is 0 or 1) or by zeros (`uiN`), a
// float keeps its own bits. So moving data never changes a bit.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_DIALECTS_NN_NNELEMENTS_H
#define MGQ_DIALECTS_NN_NNELEMENTS_H

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include <vector>

namespace mgq::nn {

/// A constant tensor; a splat holds one word for all elements.
struct Elements {
  mlir::RankedTensorType type;
  bool splat = false;
  std::vector<uint64_t> words;

  uint64_t word(int64_t index) const { return words[splat ? 0 : index]; }
};

/// Reads a constant, or gives nothing when it is not dense.
std::optional<Elements> readElements(mlir::Attribute attr);

/// The constant of these elements.
mlir::DenseElementsAttr writeElements(const Elements &elements);

/// A float's value, and the bits of a value rounded to a float type (to
/// nearest, ties to even).
double floatOfWord(uint64_t word, mlir::FloatType type);
uint64_t wordOfFloat(double value, mlir::FloatType type);

/// Extends the low bits of `word` as the integer type says.
uint64_t wrapWord(uint64_t word, mlir::IntegerType type);

/// Steps through all positions of `shape` in row-major order and calls `visit`
/// with the offset that `strides` give to each.
template <typename Visit>
void forEachOffset(llvm::ArrayRef<int64_t> shape,
                   llvm::ArrayRef<int64_t> strides, int64_t offset,
                   Visit visit) {
  int64_t rank = shape.size();
  for (int64_t dim : shape)
    if (dim == 0)
      return;
  llvm::SmallVector<int64_t> position(rank, 0);
  while (true) {
    visit(offset);
    int64_t dim = rank - 1;
    for (; dim >= 0; --dim) {
      offset += strides[dim];
      if (++position[dim] < shape[dim])
        break;
      offset -= strides[dim] * shape[dim];
      position[dim] = 0;
    }
    if (dim < 0)
      return;
  }
}

/// Row-major strides of a shape.
llvm::SmallVector<int64_t> rowMajor(llvm::ArrayRef<int64_t> shape);

/// Strides that read a tensor of shape `from` as if broadcast to `to`.
llvm::SmallVector<int64_t> broadcastStrides(llvm::ArrayRef<int64_t> from,
                                            llvm::ArrayRef<int64_t> to);

} // namespace mgq::nn

#endif // MGQ_DIALECTS_NN_NNELEMENTS_H
