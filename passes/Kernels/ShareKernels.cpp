//===- ShareKernels.cpp - The code of several programs in one executable --===//
//
// In: modules @a, @b, ... with the same layers for other numbers of rows, each
// with its @kernels. Out: code that is linked together. Generated products, for
// one, take the number of rows at run time and are the same in all programs.
//
// A function is equal to another of its name if its text is, and all functions
// and constants that it names are equal, in turn.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Passes.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/Support/SHA256.h"
#include <map>

namespace mgq::kernels {
#define GEN_PASS_DEF_SHAREKERNELSPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;

namespace {
using Digest = std::array<uint8_t, 32>;

/// The code of one program.
class Code {
public:
  explicit Code(ModuleOp program)
      : program(program), kernels(program.lookupSymbol<ModuleOp>("kernels")) {
    if (kernels)
      symbols.emplace(kernels);
  }

  bool exists() const { return bool(kernels); }
  auto functions() { return kernels.getOps<LLVM::LLVMFuncOp>(); }
  LLVM::LLVMFuncOp find(StringRef name) {
    return symbols->lookup<LLVM::LLVMFuncOp>(name);
  }
  /// Of a symbol and all that it refers to.
  Digest digest(Operation *symbol);
  /// Erases what no code that is left needs; returns what is needed.
  llvm::DenseSet<Operation *> eraseUnused();
  /// Gives a function another symbol, here and where the program calls it.
  void rename(LLVM::LLVMFuncOp function, StringRef name);

  ModuleOp program, kernels;

private:
  SmallVector<Operation *> used(Operation *symbol);

  std::optional<SymbolTable> symbols;
  llvm::DenseMap<Operation *, Digest> digests;
};
} // namespace

/// The symbols of @kernels that the body of one names, in the order of names.
SmallVector<Operation *> Code::used(Operation *symbol) {
  std::map<std::string, Operation *> found;
  if (auto uses = SymbolTable::getSymbolUses(symbol))
    for (SymbolTable::SymbolUse use : *uses)
      if (StringRef name = use.getSymbolRef().getRootReference();
          Operation *other = symbols->lookup(name))
        found[name.str()] = other;
  return llvm::to_vector(llvm::make_second_range(found));
}

Digest Code::digest(Operation *symbol) {
  // While it is computed, a recursive function counts as its name.
  auto [entry, isNew] = digests.try_emplace(symbol, Digest());
  if (!isNew)
    return entry->second;
  std::string text;
  llvm::raw_string_ostream os(text);
  symbol->print(os, OpPrintingFlags().useLocalScope());
  for (Operation *other : used(symbol)) {
    Digest part = digest(other);
    os.write(reinterpret_cast<const char *>(part.data()), part.size());
  }
  Digest result = llvm::SHA256::hash(llvm::arrayRefFromStringRef(text));
  digests[symbol] = result;
  return result;
}

llvm::DenseSet<Operation *> Code::eraseUnused() {
  llvm::SetVector<Operation *> needed;
  for (LLVM::LLVMFuncOp function : functions())
    if (!function.isExternal() &&
        function.getLinkage() == LLVM::Linkage::External)
      needed.insert(function);
  for (size_t i = 0; i < needed.size(); ++i)
    needed.insert_range(used(needed[i]));
  for (Operation &op : llvm::make_early_inc_range(*kernels.getBody())) {
    // Declarations of layers tell the program of their arguments.
    bool isLayer = op.hasAttr("nn.args");
    if (isa<SymbolOpInterface>(op) && !isLayer && !needed.contains(&op))
      symbols->erase(&op);
  }
  return llvm::DenseSet<Operation *>(needed.begin(), needed.end());
}

void Code::rename(LLVM::LLVMFuncOp function, StringRef name) {
  StringAttr symbol = StringAttr::get(function.getContext(), name);
  StringAttr old = function.getSymNameAttr();
  (void)SymbolTable::replaceAllSymbolUses(old, symbol, kernels);
  SymbolTable::setSymbolName(function, symbol);
  auto declaration = program.lookupSymbol<func::FuncOp>(old);
  (void)SymbolTable::replaceAllSymbolUses(old, symbol, program);
  if (declaration)
    SymbolTable::setSymbolName(declaration, symbol);
}

namespace {
/// Functions that have code so far, in whichever program.
class Pool {
public:
  /// Makes a function of `code` a declaration of an equal one; false if there
  /// is none.
  bool share(LLVM::LLVMFuncOp function, const Digest &digest);
  void add(LLVM::LLVMFuncOp function, const Digest &digest) {
    known[{function.getName().str(), digest}] = function;
  }

private:
  std::map<std::pair<std::string, Digest>, LLVM::LLVMFuncOp> known;
};
} // namespace

bool Pool::share(LLVM::LLVMFuncOp function, const Digest &digest) {
  auto it = known.find({function.getName().str(), digest});
  if (it == known.end())
    return false;
  it->second.setLinkage(LLVM::Linkage::External);
  function.getBody().dropAllReferences();
  function.getBody().getBlocks().clear();
  function.setLinkage(LLVM::Linkage::External);
  return true;
}

/// What a program shares becomes declarations; the rest gets a suffix, but in
/// the first program.
static void shareCode(Code &code, Pool &pool, bool isFirst) {
  SmallVector<std::pair<LLVM::LLVMFuncOp, Digest>> bodies;
  for (LLVM::LLVMFuncOp function : code.functions())
    if (!function.isExternal())
      bodies.emplace_back(function, code.digest(function));
  if (isFirst) {
    for (auto &[function, digest] : bodies)
      pool.add(function, digest);
    return;
  }
  // Whole layers first: what only they call need not be seen from outside.
  llvm::DenseSet<Operation *> shared;
  auto isLayer = [](LLVM::LLVMFuncOp function) {
    return function.getLinkage() == LLVM::Linkage::External;
  };
  for (auto &[function, digest] : bodies)
    if (isLayer(function) && pool.share(function, digest))
      shared.insert(function);
  llvm::DenseSet<Operation *> needed = code.eraseUnused();
  llvm::erase_if(bodies, [&](const auto &entry) {
    return shared.contains(entry.first) || !needed.contains(entry.first);
  });
  for (auto &[function, digest] : bodies)
    if (!isLayer(function) && pool.share(function, digest))
      shared.insert(function);
  needed = code.eraseUnused();
  StringRef suffix = code.program.getSymName().value_or("");
  for (auto &[function, digest] : bodies) {
    if (shared.contains(function) || !needed.contains(function))
      continue;
    if (isLayer(function))
      code.rename(function, (function.getName() + "." + suffix).str());
    else
      pool.add(function, digest);
  }
}

namespace {
struct ShareKernelsPass
    : mgq::kernels::impl::ShareKernelsPassBase<ShareKernelsPass> {
  using ShareKernelsPassBase::ShareKernelsPassBase;

  void runOnOperation() override {
    SmallVector<ModuleOp> programs;
    for (ModuleOp program : getOperation().getOps<ModuleOp>())
      programs.insert(program.getSymName() == StringRef(first)
                          ? programs.begin()
                          : programs.end(),
                      program);
    Pool pool;
    for (ModuleOp program : programs) {
      Code code(program);
      if (code.exists())
        shareCode(code, pool, program == programs.front());
    }
  }
};
} // namespace
