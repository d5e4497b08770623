//===- LayerNames.h - Names of layers from scopes and parameters
//------------===//
#ifndef MGQ_PASSES_NN_LAYERNAMES_H
#define MGQ_PASSES_NN_LAYERNAMES_H

#include "mlir/IR/Operation.h"
#include "llvm/ADT/StringMap.h"
#include <string>

namespace mgq::nn {

/// Names instances of layers: by the module that their ops come from, as the
/// exporter noted it in locations, else by the common part of their parameters'
/// names, else by number. Call `add` for all, then `nameOf`.
class LayerNames {
public:
  /// Notes the next instance.
  void add(llvm::ArrayRef<mlir::Operation *> ops);

  /// The name of the i-th instance; no other has it.
  std::string nameOf(size_t i);

  /// A name like `name` that no instance has.
  std::string unique(llvm::StringRef name);

private:
  using Path = llvm::SmallVector<llvm::StringRef>;
  /// What the modules of an instance have in common, and the part after it that
  /// most of them have next, if any.
  struct Instance {
    Path common;
    llvm::StringRef next;
  };

  llvm::SmallVector<Instance> instances;
  /// How many instances have a path as their common part or as a prefix of it.
  llvm::StringMap<unsigned> prefixes;
  llvm::StringMap<unsigned> used;
};

/// The name of the layer that instances of this name share: without numbers.
std::string layerOf(llvm::StringRef instance);

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_LAYERNAMES_H
