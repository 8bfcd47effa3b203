// Paged-attention prefill: checks (--check), the timed grid (default; --quick: a few points), or one point
// (--point QUERIES PAST).
#include <queue>

#include "prefill_kernel.cuh"

namespace {

struct Batch {
  std::vector<int> queries, past;  // per sequence
  int size() const { return static_cast<int>(queries.size()); }
  int kv_len(int i) const { return past[i] + queries[i]; }
  int total() const {
    int n = 0;
    for (int q : queries) n += q;
    return n;
  }
  double pairs() const {
    double n = 0;
    for (int i = 0; i < size(); ++i) n += static_cast<double>(queries[i]) * past[i] + 0.5 * queries[i] * (queries[i] + 1.0);
    return n;
  }
};

Batch uniform(int n, int queries, int past) { return {std::vector<int>(n, queries), std::vector<int>(n, past)}; }

struct Setup {
  int heads, kv_heads, block_size;
};

// Work items with every KV range cut into at most `splits` parts, longest first.
std::vector<PrefillItem> cut(const Batch& b, const Setup& s, int splits) {
  int per_tile = kRows / (s.heads / s.kv_heads);
  std::vector<PrefillItem> items;
  for (int i = 0, row = 0; i < b.size(); row += b.queries[i++])
    for (int q = 0; q < b.queries[i]; q += per_tile) {
      int last = std::min(q + per_tile, b.queries[i]) - 1;
      int tiles = (b.past[i] + last + kTileTokens) / kTileTokens;
      int parts = std::min(splits, tiles);
      for (int k = 0; k < parts; ++k)
        for (int h = 0; h < s.kv_heads; ++h)
          items.push_back({i, h, q, static_cast<int>(static_cast<long long>(tiles) * k / parts),
                           static_cast<int>(static_cast<long long>(tiles) * (k + 1) / parts), k, splits, b.past[i],
                           b.queries[i], row});
    }
  std::stable_sort(items.begin(), items.end(), [](const PrefillItem& a, const PrefillItem& c) {
    return a.tile_hi - a.tile_lo > c.tile_hi - c.tile_lo;
  });
  return items;
}

// Deal sorted items to CTAs, each to the one with the least work so far; reorders `items` by CTA.
// Returns the first item of each CTA, and one past the last; `most` gets the largest load in tiles.
std::vector<int> deal(std::vector<PrefillItem>& items, int ctas, double& most) {
  constexpr double kItemCost = 0.7;  // start and end of an item, in tiles
  most = 0;
  std::vector<std::vector<PrefillItem>> hands(ctas);
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>> load;
  for (int i = 0; i < ctas; ++i) load.push({0.0, i});
  for (const PrefillItem& it : items) {
    auto [work, cta] = load.top();
    load.pop();
    hands[cta].push_back(it);
    work += it.tile_hi - it.tile_lo + kItemCost;
    most = std::max(most, work);
    load.push({work, cta});
  }
  std::vector<int> first{0};
  items.clear();
  for (const auto& hand : hands) {
    items.insert(items.end(), hand.begin(), hand.end());
    first.push_back(static_cast<int>(items.size()));
  }
  return first;
}

struct Plan {
  std::vector<PrefillItem> items;
  std::vector<int> first;
  int splits, ctas;
};

// The number of splits with the least estimated time: the longest hand at about 1.5 us a tile and, when split,
// the second kernel's start and the partial results' way through memory. Parts keep at least four tiles.
Plan make_plan(const Batch& b, const Setup& s, int head_size, int sms) {
  int longest = 0;
  for (int i = 0; i < b.size(); ++i) longest = std::max(longest, (b.kv_len(i) + kTileTokens - 1) / kTileTokens);
  Plan best{};
  double best_us = INFINITY;
  for (int splits : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}) {
    double partial = 4.0 * splits * b.total() * s.heads * head_size;
    if (splits > 1 && (splits > longest / 4 || partial > 256e6)) break;
    Plan plan{cut(b, s, splits), {}, splits, 0};
    plan.ctas = std::min(sms, static_cast<int>(plan.items.size()));
    double most = 0;
    plan.first = deal(plan.items, plan.ctas, most);
    double us = 1.5 * most + (splits > 1 ? 4 + 2 * partial / 2.5e6 : 0);
    if (us < best_us) best = plan, best_us = us;
  }
  return best;
}

template <int D>
class Bench {
 public:
  Bench(const Setup& s, int blocks, uint64_t seed) : s_(s), cache_(make_cache<bf16>(blocks, s.block_size, s.kv_heads, D, seed)) {
    order_ = shuffled_blocks(blocks, seed);
    sms_ = device_properties().multiProcessorCount;
    CHECK(cudaFuncSetAttribute(prefill_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, PrefillSmem<D>::kBytes));
    CHECK(cudaStreamCreate(&stream_));
    uint64_t row = static_cast<uint64_t>(cache_.row()) * 2, bs = s.block_size;
    std::vector<uint64_t> sizes{D, static_cast<uint64_t>(s.kv_heads), bs, static_cast<uint64_t>(blocks)}, strides{D * 2, row, row * bs};
    std::vector<uint32_t> box{64, 1, static_cast<uint32_t>(bs), 1};
    km_ = make_tensor_map(cache_.k, sizes, strides, box);
    vm_ = make_tensor_map(cache_.v, sizes, strides, box);
  }
  ~Bench() {
    release();
    free_cache(cache_);
    cudaStreamDestroy(stream_);
  }

  size_t blocks_of(const Batch& b) const {
    size_t n = 0;
    for (int i = 0; i < b.size(); ++i) n += (b.kv_len(i) + s_.block_size - 1) / s_.block_size;
    return n;
  }
  bool fits(const Batch& b) const { return blocks_of(b) <= order_.size(); }

  void prepare(const Batch& b, int sets) {
    release();
    sets_ = sets;
    seqs_ = b.size();
    p_ = {};
    for (int i = 0; i < seqs_; ++i) p_.max_blocks = std::max(p_.max_blocks, (b.kv_len(i) + s_.block_size - 1) / s_.block_size);
    std::vector<int> table(static_cast<size_t>(sets) * seqs_ * p_.max_blocks, -1);
    size_t used = 0;
    for (int set = 0; set < sets; ++set)
      for (int i = 0; i < seqs_; ++i)
        for (int x = 0; x < (b.kv_len(i) + s_.block_size - 1) / s_.block_size; ++x)
          table[(static_cast<size_t>(set) * seqs_ + i) * p_.max_blocks + x] = order_[used++];
    Plan plan = make_plan(b, s_, D, sms_);
    ctas_ = plan.ctas, p_.max_splits = plan.splits;
    p_.first_item = keep(to_device(plan.first));
    p_.items = keep(to_device(plan.items));
    table_ = keep(to_device(table));
    p_.block_size = s_.block_size, p_.cache_blocks = cache_.blocks, p_.heads = s_.heads, p_.kv_heads = s_.kv_heads;
    p_.total_queries = b.total();
    p_.scale_log2 = 1.4426950408889634f / std::sqrt(static_cast<float>(D));
    size_t n = static_cast<size_t>(b.total()) * s_.heads;
    q_ = keep(device_alloc<bf16>(n * D));
    fill_random(q_, n * D, 99, 6.0f);
    p_.out = keep(device_alloc<bf16>(n * D));
    CHECK(cudaMemset(p_.out, 0xff, n * D * sizeof(bf16)));
    if (p_.max_splits > 1) {
      p_.part_o = keep(device_alloc<float>(n * D * p_.max_splits));
      CHECK(cudaMemset(p_.part_o, 0xff, n * D * p_.max_splits * sizeof(float)));
      p_.part_ml = keep(to_device(std::vector<float2>(n * p_.max_splits, make_float2(-INFINITY, 0))));
    }
    uint32_t group = s_.heads / s_.kv_heads;
    qm_ = make_tensor_map(q_, {D, static_cast<uint64_t>(s_.heads), static_cast<uint64_t>(b.total())},
                          {D * 2, static_cast<uint64_t>(s_.heads) * D * 2}, {64, group, kRows / group});
  }

  void launch(int set) {
    p_.table = table_ + static_cast<size_t>(set % sets_) * seqs_ * p_.max_blocks;
    prefill_kernel<D><<<ctas_, kPrefillThreads, PrefillSmem<D>::kBytes, stream_>>>(p_, qm_, km_, vm_);
    CHECK_LAUNCH();
    if (p_.max_splits == 1) return;
    size_t warps = static_cast<size_t>(p_.total_queries) * s_.heads;
    combine_kernel<D><<<static_cast<int>((warps + 3) / 4), 128, 0, stream_>>>(p_, p_.max_splits);
    CHECK_LAUNCH();
  }

  // Compare at most `sample` queries, spread over all, with the float64 reference.
  int check(const Batch& b, int sample, const char* what) {
    prepare(b, 1);
    std::vector<int> seq, len, row;
    int stride = std::max(1, b.total() / sample), at = 0;
    for (int i = 0; i < b.size(); at += b.queries[i++])
      for (int q = 0; q < b.queries[i]; ++q)
        if ((at + q) % stride == 0 || q == b.queries[i] - 1) seq.push_back(i), len.push_back(b.past[i] + q + 1), row.push_back(at + q);
    std::vector<double> want = reference(cache_, q_, table_, p_.max_blocks, seq, len, row, s_.heads, 1.0 / std::sqrt(D));
    std::vector<int> kv_len;
    for (int i = 0; i < b.size(); ++i) kv_len.push_back(b.kv_len(i));
    int* lens = to_device(kv_len);
    poison_kernel<bf16><<<dim3(32, b.size()), 128>>>(cache_, table_, p_.max_blocks, lens);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaFree(lens));
    launch(0);
    CHECK(cudaStreamSynchronize(stream_));
    std::vector<bf16> all = to_host(p_.out, static_cast<size_t>(b.total()) * s_.heads * D), got;
    bool unwritten = false;
    for (bf16 x : all) unwritten |= std::isnan(static_cast<float>(x));
    for (int r : row) got.insert(got.end(), all.begin() + static_cast<size_t>(r) * s_.heads * D, all.begin() + static_cast<size_t>(r + 1) * s_.heads * D);
    double e = unwritten ? NAN : relative_error(got, want);
    // The cache's poisoned slots must not leak into the next case.
    fill_random(cache_.k, cache_.elements(), 7, 2.0f);
    fill_random(cache_.v, cache_.elements(), 8, 2.0f);
    return report_check("paged_prefill", format("%dx%d heads, size %d, block %d; %s; %d splits", s_.heads, s_.kv_heads, D, s_.block_size, what, p_.max_splits), e, 1e-2);
  }

  Timing time(const Batch& b) {
    double bytes = static_cast<double>(blocks_of(b)) * s_.block_size * cache_.row() * 4;
    int sets = static_cast<int>(std::min<double>(std::min(100.0, std::ceil(250e6 / bytes)), static_cast<double>(order_.size() / blocks_of(b))));
    prepare(b, std::max(1, sets));
    return time_graph(stream_, sets_, [&](int i) { launch(i); });
  }
  void emit(const Batch& b, bool same) {
    Timing t = time(b);
    Row row("paged_prefill");
    row.text("kernel", "own").count("heads", s_.heads).count("kv_heads", s_.kv_heads).count("head_size", D).count("block_size", s_.block_size)
        .text("kv_dtype", "bf16").count("batch", b.size());
    if (same) row.count("queries", b.queries[0]).count("past", b.past[0]);
    row.num("pairs", b.pairs()).timing(t).num("TFLOPs", 4.0 * D * s_.heads * b.pairs() / t.us / 1e6).count("splits", p_.max_splits)
        .count("ctas", ctas_).print();
  }

 private:
  template <typename T>
  T* keep(T* p) {
    owned_.push_back(p);
    return p;
  }
  void release() {
    for (void* p : owned_) CHECK(cudaFree(p));
    owned_.clear();
  }
  Setup s_;
  PagedCache<bf16> cache_;
  std::vector<int> order_;
  std::vector<void*> owned_;
  cudaStream_t stream_;
  CUtensorMap qm_, km_, vm_;
  PrefillParams p_ = {};
  bf16* q_ = nullptr;
  int* table_ = nullptr;
  int sms_ = 0, sets_ = 1, seqs_ = 0, ctas_ = 0;
};

template <int D>
int checks(const Setup& s, bool tiny) {
  Bench<D> b(s, tiny ? 200 : 1500, 7);
  int bad = b.check({{64, 1, 33}, {0, 100, 77}}, 1000, "mixed short");
  bad += b.check(uniform(1, tiny ? 150 : 300, 0), 1000, "no past");
  bad += b.check(uniform(1, 70, tiny ? 1200 : 5000), 1000, "short chunk, long past");
  if (!tiny) bad += b.check(uniform(2, 1024, 1111), 200, "two chunks of 1024, past 1111");
  if (!tiny) bad += b.check({{2000, 600, 129, 8}, {0, 3000, 128, 4000}}, 200, "mixed");
  return bad;
}

int all_checks(bool tiny) {
  int bad = 0;
  for (int block : {16, 32}) bad += checks<128>({32, 8, block}, tiny) + checks<64>({32, 8, block}, tiny);
  return bad + checks<128>({40, 8, 16}, tiny) + checks<128>({8, 8, 16}, tiny);
}

template <int D>
void grid(const Setup& s, const std::vector<int>& queries, const std::vector<int>& pasts, bool batches) {
  Bench<D> bench(s, 65536 * 16 / s.block_size, 11);
  for (int past : pasts)
    for (int q : queries) bench.emit(uniform(1, q, past), true);
  if (!batches) return;
  for (auto [n, q] : std::vector<std::pair<int, int>>{{2, 1024}, {4, 512}, {8, 256}, {8, 2048}, {16, 128}, {16, 1024}, {32, 64}})
    bench.emit(uniform(n, q, 0), true);
}

}  // namespace

int main(int argc, char** argv) {
  if (has_flag(argc, argv, "--check")) return all_checks(has_flag(argc, argv, "--tiny"));
  if (argc == 4 && has_flag(argc, argv, "--point")) {  // one point, for a profiler
    grid<128>({32, 8, 16}, {atoi(argv[2])}, {atoi(argv[3])}, false);
    return 0;
  }
  if (has_flag(argc, argv, "--quick")) {
    grid<128>({32, 8, 16}, {64, 512, 2048, 8192}, {0, 8192}, false);
    return 0;
  }
  std::vector<int> queries{64, 128, 256, 512, 1024, 2048, 4096, 8192};
  grid<128>({32, 8, 16}, queries, {0, 1024, 4096, 8192, 16384, 32768}, true);
  grid<128>({40, 8, 16}, queries, {0, 8192}, false);
  grid<128>({32, 8, 32}, {512, 2048, 8192}, {0, 8192}, false);
  grid<64>({32, 8, 16}, {512, 2048, 8192}, {0, 8192}, false);
  return 0;
}
