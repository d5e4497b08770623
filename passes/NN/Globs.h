//===- Globs.h - Patterns over parameter names
//------------------------------===//
#ifndef MGQ_PASSES_NN_GLOBS_H
#define MGQ_PASSES_NN_GLOBS_H

#include "mlir/Support/LLVM.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/GlobPattern.h"
#include <memory>
#include <string>

namespace mgq {

/// A glob over whole names: `*` any characters, `?` one, `[a-z]` one of a set;
/// a backslash takes the next character literally.
class Glob {
public:
  /// Parses `text` or says what is wrong with it.
  static llvm::Expected<Glob> create(llvm::StringRef text);

  llvm::StringRef getText() const { return *text; }
  bool match(llvm::StringRef name) const { return pattern.match(name); }

private:
  Glob(std::unique_ptr<std::string> text, llvm::GlobPattern pattern)
      : text(std::move(text)), pattern(std::move(pattern)) {}

  /// On the heap: the pattern refers to it.
  std::unique_ptr<std::string> text;
  llvm::GlobPattern pattern;
};

/// Splits a comma-separated list of globs; an escaped comma does not split.
llvm::SmallVector<std::string> splitGlobs(llvm::StringRef list);

/// The names of smallest edit distance to `text`, nearest first.
llvm::SmallVector<llvm::StringRef>
nearestNames(llvm::StringRef text, llvm::ArrayRef<llvm::StringRef> names,
             size_t count = 3);

} // namespace mgq

#endif // MGQ_PASSES_NN_GLOBS_H
