//===- Linear.cpp - Products of matrices, convolutions --------------------===//

#include "frontends/onnx/Registry.h"
#include "frontends/onnx/Window.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;

//===----------------------------------------------------------------------===//
// MatMul, Gemm
//===----------------------------------------------------------------------===//

static Value importMatMul(Node &n) {
  Value a = n.input(0), b = n.input(1);
  if (!a || !b || rankOf(a) == 0 || rankOf(b) == 0)
    return n.fail("has an operand of rank 0");
  bool rowVector = rankOf(a) == 1, columnVector = rankOf(b) == 1;
  if (rowVector)
    a = n.reshape(a, {1, shapeOf(a)[0]});
  if (columnVector)
    b = n.reshape(b, {shapeOf(b)[0], 1});
  Value y = n.matmul(a, b);
  if (!y || (!rowVector && !columnVector))
    return y;
  Shape shape(shapeOf(y));
  if (columnVector)
    shape.pop_back();
  if (rowVector)
    shape.erase(shape.end() - (columnVector ? 1 : 2));
  return n.reshape(y, shape);
}

static Value importGemm(Node &n) {
  Value y = n.matmul(n.input(0), n.input(1), n.getInt("transA", 0) != 0,
                     n.getInt("transB", 0) != 0);
  double alpha = n.getFloat("alpha", 1), beta = n.getFloat("beta", 1);
  if (alpha != 1)
    y = n.mul(y, n.scalarLike(alpha, y));
  Value c = n.input(2);
  if (!c)
    return y;
  if (beta != 1)
    c = n.mul(c, n.scalarLike(beta, c));
  return n.add(y, c);
}

//===----------------------------------------------------------------------===//
// Convolution
//===----------------------------------------------------------------------===//

std::optional<Window> mgq::onnx::windowOf(Node &n, Value x,
                                          ArrayRef<int64_t> kernel) {
  size_t spatial = kernel.size();
  if (rankOf(x) != static_cast<int64_t>(spatial) + 2 || spatial < 1 ||
      spatial > 3) {
    n.fail("not supported yet: a window of " + Twine(spatial) +
           " dimensions over an input of rank " + Twine(rankOf(x)) +
           "; supported: 1 to 3 spatial dimensions");
    return std::nullopt;
  }
  auto list = [&](StringRef name, size_t count, int64_t otherwise) {
    MaybeInts given = n.getInts(name);
    if (given && given->size() != count)
      n.fail("has " + Twine(given->size()) + " " + name + ", expected " +
             Twine(count));
    return given && given->size() == count ? Shape(*given)
                                           : Shape(count, otherwise);
  };
  Window window{list("strides", spatial, 1), list("dilations", spatial, 1),
                Shape(spatial, 0), Shape(spatial, 0)};
  std::string mode = n.getString("auto_pad", "NOTSET");
  Shape pads = list("pads", 2 * spatial, 0);
  for (size_t i = 0; i < spatial; ++i) {
    int64_t stride = window.strides[i], size = shapeOf(x)[2 + i];
    if (stride < 1 || window.dilations[i] < 1 || kernel[i] < 1)
      n.fail("has a stride, dilation or window below 1");
    else if (mode == "SAME_UPPER" || mode == "SAME_LOWER") {
      int64_t extent = (kernel[i] - 1) * window.dilations[i] + 1;
      int64_t windows = (size + stride - 1) / stride;
      int64_t total =
          std::max<int64_t>((windows - 1) * stride + extent - size, 0);
      int64_t less = total / 2, more = total - less;
      window.before[i] = mode == "SAME_UPPER" ? less : more;
      window.after[i] = mode == "SAME_UPPER" ? more : less;
    } else if (mode == "NOTSET") {
      window.before[i] = pads[i];
      window.after[i] = pads[i + spatial];
    }
    if (window.before[i] < 0 || window.after[i] < 0)
      n.fail("not supported yet: negative pads");
  }
  return n.hasFailed() ? std::nullopt : std::optional(window);
}

/// y + bias, one value per channel.
static Value addBias(Node &n, Value y, Value bias) {
  if (!bias || !y)
    return y;
  Shape shape(rankOf(y) - 1, 1);
  shape[0] = shapeOf(y)[1];
  return n.add(y, n.reshape(bias, shape));
}

static Value importConv(Node &n) {
  Value x = n.input(0), weight = n.input(1);
  if (rankOf(x) < 3 || rankOf(weight) != rankOf(x))
    return n.fail("has an input of rank " + Twine(rankOf(x)) +
                  " and a weight of rank " + Twine(rankOf(weight)));
  auto window = windowOf(n, x, shapeOf(weight).drop_front(2));
  if (!window)
    return {};
  Value y =
      n.make<nn::ConvOp>(x, weight, window->strides, window->dilations,
                         window->before, window->after, n.getInt("group", 1));
  return addBias(n, y, n.input(2));
}

/// Size of one dimension of a transposed convolution, and its pads.
static int64_t spreadSize(Node &n, Window &window, size_t i, int64_t size,
                          int64_t kernel, int64_t extra, int64_t wanted) {
  std::string mode = n.getString("auto_pad", "NOTSET");
  bool same = mode == "SAME_UPPER" || mode == "SAME_LOWER";
  int64_t stride = window.strides[i];
  int64_t whole =
      stride * (size - 1) + extra + (kernel - 1) * window.dilations[i] + 1;
  if (wanted < 0 && same)
    wanted = size * stride;
  if (wanted < 0)
    return whole - window.before[i] - window.after[i];
  int64_t total = std::max<int64_t>(whole - wanted, 0);
  int64_t less = total / 2, more = total - less;
  window.before[i] = mode == "SAME_UPPER" ? less : more;
  window.after[i] = mode == "SAME_UPPER" ? more : less;
  return wanted;
}

static Value importConvTranspose(Node &n) {
  Value x = n.input(0), weight = n.input(1);
  if (rankOf(x) < 3 || rankOf(weight) != rankOf(x) ||
      shapeOf(weight)[0] != shapeOf(x)[1])
    return n.fail("has an input and a weight that do not fit");
  auto kernel = shapeOf(weight).drop_front(2);
  // auto_pad has another meaning here: spreadSize sees to it.
  auto window = windowOf(n, x, kernel);
  if (!window)
    return {};
  MaybeInts extra = n.getInts("output_padding"),
            wanted = n.getInts("output_shape");
  int64_t groups = n.getInt("group", 1);
  Shape shape{shapeOf(x)[0], shapeOf(weight)[1] * groups};
  for (size_t i = 0; i < kernel.size(); ++i) {
    // output_shape may include batch and channels.
    size_t skip = wanted && wanted->size() > kernel.size() ? 2 : 0;
    shape.push_back(spreadSize(n, *window, i, shapeOf(x)[2 + i], kernel[i],
                               extra ? (*extra)[i] : 0,
                               wanted ? (*wanted)[i + skip] : -1));
    if (shape.back() < 0)
      return n.fail("has pads larger than its result");
  }
  Value y = n.makeTyped<nn::ConvGradInputOp>(
      typeOf(x).clone(shape), x, weight, window->strides, window->dilations,
      window->before, window->after, groups);
  return addBias(n, y, n.input(2));
}

//===----------------------------------------------------------------------===//
// Einsum
//===----------------------------------------------------------------------===//

namespace {
/// A tensor with one letter per dimension; dimensions of an ellipsis have the
/// letters 0, 1, ... from the right.
struct Lettered {
  Value value;
  std::string letters;
};
} // namespace

static bool isDot(char letter) { return letter >= '0' && letter <= '9'; }

/// Permutes to the letters of `order`, all of which the operand has.
static Lettered arrange(Node &n, const Lettered &x, StringRef order) {
  Shape permutation;
  for (char letter : order)
    permutation.push_back(x.letters.find(letter));
  return {n.transpose(x.value, permutation), order.str()};
}

/// Sums over the letters that are not in `keep`.
static Lettered sumOthers(Node &n, const Lettered &x, StringRef keep) {
  Shape axes;
  std::string left;
  for (auto [index, letter] : llvm::enumerate(x.letters)) {
    if (keep.contains(letter))
      left += letter;
    else
      axes.push_back(index);
  }
  if (axes.empty())
    return x;
  return {n.reduce(nn::ReduceKind::Sum, x.value, axes, false), left};
}

static int64_t product(const Lettered &x, StringRef letters) {
  int64_t result = 1;
  for (char letter : letters)
    result *= shapeOf(x.value)[x.letters.find(letter)];
  return result;
}

/// One product of two operands that keeps the letters of `keep`.
static Lettered contract(Node &n, Lettered a, Lettered b, StringRef keep) {
  a = sumOthers(n, a, (keep + b.letters).str());
  b = sumOthers(n, b, (keep + a.letters).str());
  std::string batch, inner, rows, columns;
  for (char letter : a.letters) {
    bool shared = b.letters.find(letter) != std::string::npos;
    (!shared ? rows : keep.contains(letter) ? batch : inner) += letter;
  }
  for (char letter : b.letters)
    if (a.letters.find(letter) == std::string::npos)
      columns += letter;
  if (!a.value || !b.value)
    return {};
  int64_t batches = product(a, batch), k = product(a, inner);
  int64_t m = product(a, rows), width = product(b, columns);
  Shape shape;
  for (char letter : batch + rows)
    shape.push_back(product(a, StringRef(&letter, 1)));
  for (char letter : columns)
    shape.push_back(product(b, StringRef(&letter, 1)));
  Value left =
      n.reshape(arrange(n, a, batch + rows + inner).value, {batches, m, k});
  Value right = n.reshape(arrange(n, b, batch + inner + columns).value,
                          {batches, k, width});
  return {n.reshape(n.matmul(left, right), shape), batch + rows + columns};
}

/// Letters of one term; an ellipsis stands for the dimensions that are left.
static std::optional<std::string> expandTerm(Node &n, StringRef term,
                                             int64_t rank) {
  std::string letters;
  auto [head, tail] = term.split("...");
  int64_t dots = rank - static_cast<int64_t>(head.size() + tail.size());
  if (term.contains("...") ? dots < 0 || dots > 10 : dots != 0) {
    n.fail("term '" + term + "' does not fit an operand of rank " +
           Twine(rank));
    return std::nullopt;
  }
  letters = head.str();
  for (int64_t i = dots - 1; i >= 0; --i)
    letters += static_cast<char>('0' + i);
  letters += tail.str();
  return letters;
}

/// Takes the diagonal of dimensions with the same letter.
static void takeDiagonals(Node &n, Lettered &x) {
  for (size_t i = 0; i < x.letters.size(); ++i) {
    size_t j = x.letters.find(x.letters[i], i + 1);
    if (j == std::string::npos)
      continue;
    // Moves both to the end, as one dimension, and picks every (size + 1)-th.
    Shape permutation, shape;
    std::string left;
    int64_t size = shapeOf(x.value)[i];
    if (shapeOf(x.value)[j] != size) {
      n.fail("takes the diagonal of dimensions of different size");
      return;
    }
    for (size_t k = 0; k < x.letters.size(); ++k) {
      if (k == i || k == j)
        continue;
      permutation.push_back(k);
      shape.push_back(shapeOf(x.value)[k]);
      left += x.letters[k];
    }
    permutation.append({static_cast<int64_t>(i), static_cast<int64_t>(j)});
    shape.push_back(size * size);
    Shape picks;
    for (int64_t k = 0; k < size; ++k)
      picks.push_back(k * (size + 1));
    left += x.letters[i];
    Value flat = n.reshape(n.transpose(x.value, permutation), shape);
    x = {n.gather(flat, n.ints(picks), shape.size() - 1), left};
    takeDiagonals(n, x);
    return;
  }
}

/// Expands dimensions of 1 where another operand has more.
static void equalizeSizes(Node &n, SmallVectorImpl<Lettered> &operands) {
  llvm::DenseMap<char, int64_t> sizes;
  for (const Lettered &x : operands)
    for (auto [letter, dim] : llvm::zip_equal(x.letters, shapeOf(x.value)))
      sizes[letter] = std::max(sizes.lookup(letter), dim);
  for (Lettered &x : operands) {
    Shape shape;
    for (char letter : x.letters)
      shape.push_back(sizes[letter]);
    x.value = n.broadcast(x.value, shape);
  }
}

static Value importEinsum(Node &n) {
  std::string equation = n.getString("equation", "");
  llvm::erase(equation, ' ');
  auto [left, right] = StringRef(equation).split("->");
  SmallVector<StringRef> terms;
  left.split(terms, ',');
  if (terms.size() != n.inputs.size())
    return n.fail("equation '" + equation + "' has " + Twine(terms.size()) +
                  " terms for " + Twine(n.inputs.size()) + " operands");
  SmallVector<Lettered> operands;
  std::string all;
  int64_t dots = 0;
  for (auto [term, value] : llvm::zip_equal(terms, n.inputs)) {
    auto letters = expandTerm(n, term, rankOf(value));
    if (!letters)
      return {};
    dots = std::max<int64_t>(dots, llvm::count_if(*letters, isDot));
    all += *letters;
    operands.push_back({value, *letters});
    takeDiagonals(n, operands.back());
    if (n.hasFailed())
      return {};
  }
  std::string result;
  if (StringRef(equation).contains("->")) {
    auto letters = expandTerm(n, right,
                              right.contains("...") ? right.size() - 3 + dots
                                                    : right.size());
    if (!letters)
      return {};
    result = *letters;
  } else {
    // Implicit: the ellipsis, then letters that stand once, in order.
    for (int64_t i = dots - 1; i >= 0; --i)
      result += static_cast<char>('0' + i);
    std::string sorted = all;
    llvm::sort(sorted);
    for (char letter : sorted)
      if (!isDot(letter) && llvm::count(all, letter) == 1)
        result += letter;
  }
  equalizeSizes(n, operands);
  Lettered joined = operands.front();
  for (size_t i = 1; i < operands.size(); ++i) {
    std::string keep = result;
    for (size_t j = i + 1; j < operands.size(); ++j)
      keep += operands[j].letters;
    joined = contract(n, joined, operands[i], keep);
  }
  joined = sumOthers(n, joined, result);
  if (!joined.value || joined.letters.size() != result.size())
    return n.fail("equation '" + equation +
                  "' has a result that no operand "
                  "has");
  return arrange(n, joined, result).value;
}

void mgq::onnx::registerLinear(Registry &r) {
  r["Conv"] = importConv;
  r["ConvTranspose"] = importConvTranspose;
  r["Einsum"] = importEinsum;
  r["Gemm"] = importGemm;
  r["MatMul"] = importMatMul;
}
