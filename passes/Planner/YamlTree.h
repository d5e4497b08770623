//===- YamlTree.h - A YAML document in memory -------------------*- C++ -*-===//
//
// LLVM's parser reads a document once, front to back. Configuration refers back
// and forth, so it is read into a tree first. Errors know line and column.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_PLANNER_YAMLTREE_H
#define MGQ_PASSES_PLANNER_YAMLTREE_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

#include <string>
#include <vector>

namespace mgq::planner {

struct YamlNode {
  enum Kind { Null, Scalar, Sequence, Mapping } kind = Null;
  std::string text;               ///< Of a scalar.
  std::vector<std::string> keys;  ///< Of a mapping.
  std::vector<YamlNode> children; ///< Values, or items.
  unsigned line = 1, column = 1;

  const YamlNode *find(llvm::StringRef key) const;
};

struct YamlTree {
  std::string path; ///< For messages.
  YamlNode root;

  /// "path:3:5: text".
  llvm::Error error(const YamlNode &node, const llvm::Twine &text) const;
  /// The node is a mapping with no keys but these.
  llvm::Error expectKeys(const YamlNode &node, llvm::StringRef what,
                         llvm::ArrayRef<llvm::StringRef> known) const;
};

llvm::Expected<YamlTree> parseYaml(llvm::StringRef text, llvm::StringRef path);

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_YAMLTREE_H
