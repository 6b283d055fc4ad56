"""What the ranks share: staging memory, links and transports."""
