// Paged-attention decode: checks (--check), chunk-size scan (--scan) and the timed grid (default; --quick: a few points).
#include "decode_kernel.cuh"

namespace {

constexpr float kLog2e = 1.4426950408889634f;

struct Plan {
  std::vector<Chunk> chunks;
  int size;
};

struct Setup {
  int heads, kv_heads, head_size, block_size;
  const char* kv_dtype;
  std::string name() const { return format("%dx%d heads, size %d, block %d, %s KV", heads, kv_heads, head_size, block_size, kv_dtype); }
};

// Cut every sequence into chunks of `size` tokens (a multiple of the kernel's step), longest sequences first;
// a sequence's chunks stay together because partial results are stored by chunk index.
Plan cut(const std::vector<int>& lengths, int size, int step) {
  std::vector<int> order(lengths.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return lengths[a] > lengths[b]; });
  size = std::max(size, (lengths[order[0]] + kMaxSplits - 1) / kMaxSplits);
  size = (size + step - 1) / step * step;
  Plan plan{{}, size};
  for (int s : order) {
    int count = (lengths[s] + size - 1) / size, first = static_cast<int>(plan.chunks.size());
    int even = (lengths[s] + count * step - 1) / (count * step) * step;  // equal parts, whole steps
    count = (lengths[s] + even - 1) / even;
    for (int i = 0; i < count; ++i)
      plan.chunks.push_back({s, i * even, std::min(lengths[s], (i + 1) * even), first, count});
  }
  return plan;
}

// Chunk size: 1.5 times what a resident CTA would get in one wave, at least one step, at most 1024 tokens, where
// the scan (--scan) found the best or nearly the best time for every batch and context tried.
int choose_chunk(const std::vector<int>& lengths, int kv_heads, int slots, int step) {
  double tokens = 0;
  for (int x : lengths) tokens += x;
  return std::max(step, static_cast<int>(std::min(1024.0, 1.5 * tokens * kv_heads / slots)));
}

template <typename KV, int D>
class Bench {
 public:
  Bench(const Setup& s, int blocks, uint64_t seed) : s_(s), cache_(make_cache<KV>(blocks, s.block_size, s.kv_heads, D, seed)) {
    order_ = shuffled_blocks(blocks, seed);
    int resident = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, decode_kernel<KV, D>, kDecodeWarps * 32, 0));
    slots_ = resident * device_properties().multiProcessorCount;
    CHECK(cudaStreamCreate(&stream_));
  }
  ~Bench() {
    free_cache(cache_);
    release();
    cudaStreamDestroy(stream_);
  }

  // Block tables for `sets` disjoint copies of a batch; queries and outputs a set too.
  void prepare(const std::vector<int>& lengths, int sets, int chunk) {
    release();
    lengths_ = lengths;
    n_ = static_cast<int>(lengths.size());
    max_blocks_ = (*std::max_element(lengths.begin(), lengths.end()) + s_.block_size - 1) / s_.block_size;
    std::vector<int> table(static_cast<size_t>(sets) * n_ * max_blocks_, -1);
    size_t used = 0;
    for (int set = 0; set < sets; ++set)
      for (int i = 0; i < n_; ++i)
        for (int b = 0; b < (lengths[i] + s_.block_size - 1) / s_.block_size; ++b)
          table[(static_cast<size_t>(set) * n_ + i) * max_blocks_ + b] = order_[used++];
    Plan plan = cut(lengths, chunk ? chunk : choose_chunk(lengths, s_.kv_heads, slots_, Tile::kStep), Tile::kStep);
    chunk_ = plan.size;
    chunks_ = static_cast<int>(plan.chunks.size());
    d_table_ = to_device(table);
    d_chunks_ = to_device(plan.chunks);
    sets_ = sets;
    size_t q = static_cast<size_t>(sets) * n_ * s_.heads * D, parts = static_cast<size_t>(chunks_) * s_.kv_heads * kMaxGroup;
    d_q_ = device_alloc<bf16>(q);
    fill_random(d_q_, q, 99, 6.0f);
    d_out_ = device_alloc<bf16>(q);
    CHECK(cudaMemset(d_out_, 0xff, q * sizeof(bf16)));
    d_part_o_ = device_alloc<float>(parts * D);
    d_part_ml_ = device_alloc<float2>(parts);
    d_counters_ = device_alloc<int>(static_cast<size_t>(n_) * s_.kv_heads);
    CHECK(cudaMemset(d_part_o_, 0xff, parts * D * sizeof(float)));
    CHECK(cudaMemset(d_part_ml_, 0xff, parts * sizeof(float2)));
    CHECK(cudaMemset(d_counters_, 0, static_cast<size_t>(n_) * s_.kv_heads * sizeof(int)));
  }

  void launch(int set) {
    size_t q = static_cast<size_t>(set % sets_) * n_ * s_.heads * D;
    DecodeParams p{d_q_ + q, cache_.k, cache_.v, d_table_ + static_cast<size_t>(set % sets_) * n_ * max_blocks_, max_blocks_,
                   __builtin_ctz(s_.block_size), s_.heads, s_.kv_heads, d_chunks_, d_part_o_, d_part_ml_, d_counters_,
                   d_out_ + q, kLog2e / std::sqrt(static_cast<float>(D)), kScaleV};
    decode_kernel<KV, D><<<dim3(s_.kv_heads, chunks_), kDecodeWarps * 32, 0, stream_>>>(p);
    CHECK_LAUNCH();
  }

  int check(const std::vector<int>& lengths, int chunk, const char* what) {
    prepare(lengths, 1, chunk);
    std::vector<int> seq(n_), row(n_);
    for (int i = 0; i < n_; ++i) seq[i] = row[i] = i;
    std::vector<double> want = reference(cache_, d_q_, d_table_, max_blocks_, seq, lengths, row, s_.heads, 1.0 / std::sqrt(D), kScaleV);
    int* lens = to_device(lengths);
    poison_kernel<KV><<<dim3(32, n_), 128>>>(cache_, d_table_, max_blocks_, lens);
    CHECK_LAUNCH();
    double worst = 0;
    for (int run = 0; run < 2; ++run) {  // twice: the counters must be back at zero
      CHECK(cudaMemset(d_out_, 0xff, want.size() * sizeof(bf16)));
      launch(0);
      CHECK(cudaStreamSynchronize(stream_));
      double e = relative_error(to_host(d_out_, want.size()), want);
      worst = e <= worst ? worst : e;
    }
    CHECK(cudaFree(lens));
    // The cache's poisoned slots must not leak into the next case.
    fill_random(cache_.k, cache_.elements(), 7, 2.0f);
    fill_random(cache_.v, cache_.elements(), 8, 2.0f);
    return report_check("paged_decode", format("%s; %s; chunk %d", s_.name().c_str(), what, chunk_), worst, 1e-2);
  }

  // Bytes of KV read a launch; queries, outputs and partial results are left out.
  double kv_bytes() const {
    double tokens = 0;
    for (int x : lengths_) tokens += x;
    return tokens * s_.kv_heads * D * 2 * sizeof(KV);
  }

  Timing time(const std::vector<int>& lengths, int chunk) {
    size_t blocks = 0;
    for (int x : lengths) blocks += (x + s_.block_size - 1) / s_.block_size;
    double bytes = static_cast<double>(blocks) * s_.block_size * s_.kv_heads * D * 2 * sizeof(KV);
    int sets = static_cast<int>(std::min<double>(std::max(1.0, std::ceil(400e6 / bytes)), 200));
    sets = static_cast<int>(std::max<size_t>(1, std::min<size_t>(sets, order_.size() / blocks)));
    prepare(lengths, sets, chunk);
    return time_graph(stream_, sets, [&](int i) { launch(i); });
  }
  bool fits(const std::vector<int>& lengths) const {
    size_t blocks = 0;
    for (int x : lengths) blocks += (x + s_.block_size - 1) / s_.block_size;
    return blocks <= order_.size();
  }
  Row row(const char* table) const {
    return Row(table).text("kernel", "own").count("heads", s_.heads).count("kv_heads", s_.kv_heads).count("head_size", D)
        .count("block_size", s_.block_size).text("kv_dtype", s_.kv_dtype);
  }
  int chunk() const { return chunk_; }
  int ctas() const { return chunks_ * s_.kv_heads; }

 private:
  using Tile = DecodeTile<KV, D>;
  static constexpr float kScaleV = sizeof(KV) == 1 ? 0.75f : 1.0f;

  void release() {
    for (void* p : {static_cast<void*>(d_table_), static_cast<void*>(d_chunks_), static_cast<void*>(d_q_), static_cast<void*>(d_out_),
                    static_cast<void*>(d_part_o_), static_cast<void*>(d_part_ml_), static_cast<void*>(d_counters_)})
      if (p) CHECK(cudaFree(p));
    d_table_ = nullptr, d_chunks_ = nullptr, d_q_ = nullptr, d_out_ = nullptr;
    d_part_o_ = nullptr, d_part_ml_ = nullptr, d_counters_ = nullptr;
  }

  Setup s_;
  PagedCache<KV> cache_;
  std::vector<int> order_, lengths_;
  cudaStream_t stream_;
  int slots_ = 0, n_ = 0, max_blocks_ = 0, chunks_ = 0, chunk_ = 0, sets_ = 1;
  int* d_table_ = nullptr;
  Chunk* d_chunks_ = nullptr;
  bf16 *d_q_ = nullptr, *d_out_ = nullptr;
  float* d_part_o_ = nullptr;
  float2* d_part_ml_ = nullptr;
  int* d_counters_ = nullptr;
};

// Lengths drawn lognormally around `median`, at least one token.
std::vector<int> mixed_lengths(int batch, double median, int cap, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::lognormal_distribution<double> draw(std::log(median), 0.9);
  std::vector<int> v(batch);
  for (int& x : v) x = std::max(1, std::min(cap, static_cast<int>(draw(rng))));
  return v;
}

template <typename KV, int D>
int checks(const Setup& s, bool tiny) {
  Bench<KV, D> b(s, tiny ? 400 : 3000, 7);
  int bad = b.check({1, 17, 64, 65, 300}, 0, "mixed lengths");
  bad += b.check({tiny ? 515 : 2049}, 128, "one long sequence, split");
  if (!tiny) bad += b.check(mixed_lengths(24, 700, 3000, 5), 256, "24 lognormal lengths, split");
  if (!tiny) bad += b.check(std::vector<int>(8, 1024), 4096, "equal lengths, no split");
  return bad;
}

int all_checks(bool tiny) {
  int bad = 0;
  for (int block : {16, 32}) {
    bad += checks<bf16, 128>({32, 8, 128, block, "bf16"}, tiny);
    bad += checks<fp8, 128>({32, 8, 128, block, "e4m3"}, tiny);
    bad += checks<bf16, 64>({32, 8, 64, block, "bf16"}, tiny);
    bad += checks<fp8, 64>({32, 8, 64, block, "e4m3"}, tiny);
  }
  bad += checks<bf16, 128>({40, 8, 128, 16, "bf16"}, tiny);
  bad += checks<fp8, 128>({40, 8, 128, 16, "e4m3"}, tiny);
  return bad;
}

template <typename KV, int D>
void grid(const Setup& s, const std::vector<int>& batches, const std::vector<int>& contexts, double memory, bool mixed) {
  double block_bytes = 2.0 * s.block_size * s.kv_heads * D * sizeof(KV);
  size_t most = 0;
  for (int b : batches)
    for (int c : contexts) {
      size_t need = static_cast<size_t>(b) * ((c + s.block_size - 1) / s.block_size);
      if (need * block_bytes <= memory) most = std::max(most, need);
    }
  most = std::max<size_t>(most, static_cast<size_t>(500e6 / block_bytes) + 1);
  Bench<KV, D> bench(s, static_cast<int>(most), 11);
  auto emit = [&](Row row, const Timing& t) {
    row.timing(t).num("kv_GBps", bench.kv_bytes() / t.us / 1e3).count("chunk_tokens", bench.chunk()).count("ctas", bench.ctas()).print();
  };
  for (int b : batches)
    for (int c : contexts) {
      std::vector<int> lengths(b, c);
      if (!bench.fits(lengths)) continue;
      Timing t = bench.time(lengths, 0);
      emit(bench.row("paged_decode").count("batch", b).count("context", c), t);
    }
  if (!mixed) return;
  for (int b : {16, 64, 128, 256}) {
    std::vector<int> lengths = mixed_lengths(b, 1500, 16384, 100 + b);
    if (!bench.fits(lengths)) continue;
    long long total = 0;
    for (int x : lengths) total += x;
    Timing t = bench.time(lengths, 0);
    emit(bench.row("paged_decode_mixed").count("batch", b).count("context_total", total)
             .count("context_longest", *std::max_element(lengths.begin(), lengths.end())), t);
  }
}

template <typename KV>
void scan(const char* dtype) {
  Bench<KV, 128> bench({32, 8, 128, 16, dtype}, 64 * 8192 / 16, 11);
  for (auto [b, c] : std::vector<std::pair<int, int>>{{1, 512}, {1, 8192}, {4, 2048}, {16, 512}, {16, 2048}, {64, 512}, {64, 2048}, {64, 8192}})
    for (int chunk : {64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096}) {
      if (chunk > c) continue;
      Timing t = bench.time(std::vector<int>(b, c), chunk);
      bench.row("decode_scan").count("batch", b).count("context", c).timing(t).num("kv_GBps", bench.kv_bytes() / t.us / 1e3)
          .count("chunk_tokens", bench.chunk()).print();
    }
}

}  // namespace

int main(int argc, char** argv) {
  if (has_flag(argc, argv, "--check")) return all_checks(has_flag(argc, argv, "--tiny"));
  if (has_flag(argc, argv, "--scan")) {
    scan<bf16>("bf16");
    scan<fp8>("e4m3");
    return 0;
  }
  size_t free_bytes, total;
  CHECK(cudaMemGetInfo(&free_bytes, &total));
  double memory = 0.85 * free_bytes;
  std::vector<int> batches{1, 4, 16, 64, 128, 256}, contexts{512, 2048, 8192, 32768};
  if (has_flag(argc, argv, "--quick")) batches = {1, 16, 64}, contexts = {512, 2048, 8192};
  grid<bf16, 128>({32, 8, 128, 16, "bf16"}, batches, contexts, memory, true);
  grid<fp8, 128>({32, 8, 128, 16, "e4m3"}, batches, contexts, memory, true);
  if (has_flag(argc, argv, "--quick")) return 0;
  std::vector<int> few{1, 16, 64, 256}, some{512, 2048, 8192};
  grid<bf16, 128>({40, 8, 128, 16, "bf16"}, few, some, memory, false);
  grid<fp8, 128>({40, 8, 128, 16, "e4m3"}, few, some, memory, false);
  grid<bf16, 128>({16, 4, 128, 16, "bf16"}, few, some, memory, false);
  grid<bf16, 128>({32, 8, 128, 32, "bf16"}, few, some, memory, false);
  grid<bf16, 64>({32, 8, 64, 16, "bf16"}, few, some, memory, false);
  grid<fp8, 64>({32, 8, 64, 16, "e4m3"}, few, some, memory, false);
  return 0;
}
