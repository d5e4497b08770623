//===- Names.h - Names of parameters --------------------------------------===//
#ifndef MGQ_FRONTENDS_ONNX_NAMES_H
#define MGQ_FRONTENDS_ONNX_NAMES_H

#include "onnx-ml.pb.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/GlobPattern.h"
#include <string>
#include <vector>

namespace mgq::onnx {

/// The module path in which a node was traced: from the exporter's metadata
/// `pkg.torch.onnx.name_scopes`, else from TorchScript's path in the node's
/// name, else empty.
std::string scopeOf(const ::onnx::NodeProto &node);

/// Whether an exporter made this name up: `val_12`, `onnx::MatMul_45`,
/// `unsqueeze_27`, but not `encoder.weight`.
bool isMadeUp(llvm::StringRef name);

/// The name of a parameter at one use.
struct ParamName {
  std::string name;
  /// The stored tensor is the transpose of the one that has this name.
  bool transposed = false;
  /// The stored tensor has dimensions of 1 that the one of this name has not.
  bool expanded = false;
};

/// Names for all uses of the graph's float initializers.
///
/// PyTorch's exporters rename weights and merge equal ones. What a weight was
/// called follows from its user: the module path is in the user's metadata, and
/// its position says weight or bias. One initializer with several such names
/// was merged; it is taken apart only if one of the names trains, because only
/// then it matters.
class ParamNames {
public:
  ParamNames(const ::onnx::GraphProto &graph,
             const std::vector<llvm::GlobPattern> &trainable);

  /// The name of `initializer` where `node` uses it as input `index`.
  ParamName at(llvm::StringRef initializer, const ::onnx::NodeProto *node,
               int index) const;

  /// Whether one of the trainable globs matches.
  bool trains(llvm::StringRef name) const;

  /// Whether `name` is not that of a parameter: made up, of a buffer, or of a
  /// tensor that the exporter computed from others.
  bool isTable(llvm::StringRef name) const;

  bool isBuffer(llvm::StringRef name) const { return buffers.contains(name); }

  /// The initializers that the exporter computed `name` from.
  llvm::ArrayRef<std::string> sourcesOf(llvm::StringRef name) const;

  /// Parameters of the traced module that are not in the graph.
  const std::vector<std::string> &leftOut() const { return absent; }

  /// Initializers that were taken apart: to names.
  const std::vector<std::pair<std::string, std::vector<std::string>>> &
  merged() const {
    return apart;
  }

private:
  using Use = std::pair<const ::onnx::NodeProto *, int>;

  ParamName derive(Use use, int depth = 0) const;
  void learnPrefixes(const ::onnx::GraphProto &graph);
  void learnAdapters(const ::onnx::GraphProto &graph);
  std::string modulePath(std::string scope) const;
  void nameInitializer(const ::onnx::TensorProto &tensor);
  void readOrigins(const ::onnx::GraphProto &graph);
  void findAbsent();

  const std::vector<llvm::GlobPattern> &trainable;
  llvm::StringMap<std::vector<Use>> uses;
  llvm::StringMap<llvm::DenseMap<Use, ParamName>> names;
  /// TorchScript's paths follow calls, not attributes. From a path's head to
  /// that of the module's name, and from the path of a LoRA matrix to its name.
  llvm::StringMap<std::string> prefixes, adapters;
  std::vector<std::pair<std::string, std::vector<std::string>>> apart;
  /// What the exporter says of initializers.
  llvm::StringSet<> buffers;
  /// The module's parameters and, of tied ones, names that it does not list.
  llvm::StringSet<> signature, aliases;
  llvm::StringMap<std::vector<std::string>> sources;
  std::vector<std::string> absent;
};

} // namespace mgq::onnx

#endif // MGQ_FRONTENDS_ONNX_NAMES_H
