//===- Tensors.h - Stored tensors: their home in a file, their value ------===//
#ifndef MGQ_FRONTENDS_ONNX_TENSORS_H
#define MGQ_FRONTENDS_ONNX_TENSORS_H

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Location.h"
#include "onnx-ml.pb.h"
#include "llvm/Support/MemoryBuffer.h"
#include <string>
#include <vector>

namespace mgq::onnx {

/// A range of bytes in a file; the file is relative to the model's folder.
struct Home {
  std::string file;
  int64_t offset = 0;
  int64_t length = 0;
};

/// The files of one model.
class ModelFiles {
public:
  /// Maps the model's file and parses it into `model`, or reports.
  mlir::LogicalResult open(mlir::Location loc, llvm::StringRef path,
                           ::onnx::ModelProto &model);

  /// Where the bytes of the graph's initializer `index` are. Nothing for values
  /// that are not stored as raw little-endian bytes; an error is reported for
  /// bad references. A missing external file is no error: weights may come
  /// later.
  mlir::FailureOr<std::optional<Home>> home(mlir::Location loc,
                                            const ::onnx::TensorProto &tensor,
                                            int64_t index) const;

  /// The tensor's value. External data must exist.
  mlir::FailureOr<mlir::DenseElementsAttr>
  value(mlir::Location loc, const ::onnx::TensorProto &tensor) const;

  /// File name of the model without folders.
  llvm::StringRef fileName() const { return name; }

private:
  mlir::FailureOr<Home> externalHome(mlir::Location loc,
                                     const ::onnx::TensorProto &tensor) const;

  std::string folder, name;
  std::unique_ptr<llvm::MemoryBuffer> buffer;
  /// Byte range of each initializer's raw data, by position in the graph;
  /// length 0 where it has none.
  std::vector<std::pair<int64_t, int64_t>> rawData;
};

/// The type of a stored tensor, or a report.
mlir::FailureOr<mlir::RankedTensorType>
tensorType(mlir::Location loc, const ::onnx::TensorProto &tensor);

/// The value of a tensor whose data is in the message itself.
mlir::FailureOr<mlir::DenseElementsAttr>
inlineValue(mlir::Location loc, const ::onnx::TensorProto &tensor);

} // namespace mgq::onnx

#endif // MGQ_FRONTENDS_ONNX_TENSORS_H
