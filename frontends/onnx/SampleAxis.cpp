//===- SampleAxis.cpp - The leading dimension of a graph's inputs ---------===//

#include "frontends/onnx/Import.h"

#include "frontends/onnx/Tensors.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace mgq::onnx;

/// The leading dimension of an input, or nothing.
static std::optional<SampleAxis>
leadingOf(const ::onnx::ValueInfoProto &input,
          const llvm::StringMap<int64_t> &bound) {
  const auto &shape = input.type().tensor_type().shape();
  if (shape.dim_size() == 0)
    return std::nullopt;
  const auto &dim = shape.dim(0);
  SampleAxis axis;
  auto size = bound.find(dim.dim_param());
  if (dim.has_dim_value())
    axis.size = dim.dim_value();
  else if (size != bound.end())
    axis.size = size->second;
  else
    axis.name = dim.dim_param();
  return axis;
}

static std::string axisText(const SampleAxis &axis) {
  return axis.name.empty() ? std::to_string(axis.size) : "'" + axis.name + "'";
}

FailureOr<SampleAxis>
mgq::onnx::findSampleAxis(MLIRContext *context, StringRef path,
                          const llvm::StringMap<int64_t> &bound) {
  Location loc = NameLoc::get(StringAttr::get(context, path));
  ::onnx::ModelProto model;
  ModelFiles files;
  if (failed(files.open(loc, path, model)))
    return failure();
  llvm::StringSet<> initializers;
  for (const auto &tensor : model.graph().initializer())
    initializers.insert(tensor.name());
  std::optional<SampleAxis> found;
  std::string first;
  for (const auto &input : model.graph().input()) {
    // TorchScript can list parameters as inputs with a default value.
    if (initializers.contains(input.name()))
      continue;
    std::optional<SampleAxis> axis = leadingOf(input, bound);
    if (!axis)
      return emitError(loc) << "--global-batch: input '" << input.name()
                            << "' has no leading dimension for samples";
    if (!found) {
      found = axis;
      first = input.name();
    } else if (found->name != axis->name || found->size != axis->size) {
      return emitError(loc)
             << "--global-batch: inputs have different leading dimensions: '"
             << first << "' has " << axisText(*found) << ", '" << input.name()
             << "' has " << axisText(*axis);
    }
  }
  if (!found)
    return emitError(loc) << "--global-batch: the graph has no inputs";
  return *found;
}
