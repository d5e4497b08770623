//===- LayerNames.cpp - Names of layers from scopes and parameters
//----------===//

#include "passes/NN/LayerNames.h"

#include "dialects/NN/NN.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mgq::nn;

/// The module path of an op: the inner name of NameLoc("node",
/// NameLoc("path")).
static StringRef scopeOf(Operation *op) {
  auto node = dyn_cast<NameLoc>(op->getLoc());
  auto scope = node ? dyn_cast<NameLoc>(node.getChildLoc()) : nullptr;
  return scope ? scope.getName().getValue() : StringRef();
}

static SmallVector<StringRef> split(StringRef name) {
  SmallVector<StringRef> path;
  name.split(path, '.', -1, /*KeepEmpty=*/false);
  return path;
}

void LayerNames::add(ArrayRef<Operation *> ops) {
  SmallVector<Path> paths;
  for (Operation *op : ops)
    if (StringRef scope = scopeOf(op); !scope.empty())
      paths.push_back(split(scope));
  // The modules of parameters say as much: their names without the last part.
  if (paths.empty())
    for (Operation *op : ops)
      for (Value operand : op->getOperands())
        if (auto ref = operand.getDefiningOp<ParamRefOp>())
          paths.push_back(split(ref.getParam().rsplit('.').first));
  Instance &instance = instances.emplace_back();
  if (paths.empty())
    return;
  Path &common = instance.common = paths.front();
  for (const Path &path : paths) {
    size_t n = 0;
    while (n < common.size() && n < path.size() && common[n] == path[n])
      ++n;
    common.resize(n);
  }
  llvm::MapVector<StringRef, unsigned> next;
  for (const Path &path : paths)
    if (path.size() > common.size())
      ++next[path[common.size()]];
  auto most = std::max_element(next.begin(), next.end(), [](auto &a, auto &b) {
    return a.second < b.second;
  });
  if (most != next.end())
    instance.next = most->first;
  for (size_t n = 1; n <= common.size(); ++n)
    ++prefixes[llvm::join(ArrayRef(common).take_front(n), ".")];
}

std::string LayerNames::nameOf(size_t i) {
  const Instance &instance = instances[i];
  std::string name = llvm::join(instance.common, ".");
  if (name.empty())
    return unique("segment." + std::to_string(i));
  // Other instances of the same module: say which part of it this is.
  if (prefixes.lookup(name) > 1 && !instance.next.empty())
    name += "." + instance.next.str();
  return unique(name);
}

std::string LayerNames::unique(StringRef name) {
  unsigned count = used[name]++;
  return count == 0 ? name.str() : unique((name + "." + Twine(count)).str());
}

std::string mgq::nn::layerOf(StringRef instance) {
  SmallVector<StringRef> path = split(instance);
  llvm::erase_if(path, [](StringRef part) {
    return llvm::all_of(part, [](char c) { return llvm::isDigit(c); });
  });
  return path.empty() ? instance.str() : llvm::join(path, ".");
}
