//===- Globs.cpp - Patterns over parameter names
//----------------------------===//

#include "passes/NN/Globs.h"

#include "llvm/ADT/STLExtras.h"

using namespace mgq;
using llvm::StringRef;

llvm::Expected<Glob> Glob::create(StringRef text) {
  auto owned = std::make_unique<std::string>(text);
  auto pattern = llvm::GlobPattern::create(*owned);
  if (!pattern)
    return pattern.takeError();
  return Glob(std::move(owned), std::move(*pattern));
}

llvm::SmallVector<std::string> mgq::splitGlobs(StringRef list) {
  llvm::SmallVector<std::string> globs(1);
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] == ',') {
      globs.emplace_back();
      continue;
    }
    globs.back() += list[i];
    if (list[i] == '\\' && i + 1 < list.size())
      globs.back() += list[++i];
  }
  llvm::erase_if(globs, [](const std::string &glob) { return glob.empty(); });
  return globs;
}

llvm::SmallVector<StringRef> mgq::nearestNames(StringRef text,
                                               llvm::ArrayRef<StringRef> names,
                                               size_t count) {
  llvm::SmallVector<std::pair<unsigned, StringRef>> ranked;
  for (StringRef name : names)
    ranked.push_back({text.edit_distance(name), name});
  llvm::sort(ranked);
  llvm::SmallVector<StringRef> nearest;
  for (auto &[distance, name] : ranked)
    if (nearest.size() < count)
      nearest.push_back(name);
  return nearest;
}
